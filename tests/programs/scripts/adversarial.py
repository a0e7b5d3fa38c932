"""Adversarial examples: gradients of inputs, batches that are objects, a second loader in place."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


@dataclass(slots=True)
class Batch:
    images: torch.Tensor
    labels: torch.Tensor | None

    def normalize(self):
        self.images = self.images.div(2)
        return self


def collate(samples):
    images, labels = zip(*samples, strict=True)
    return Batch(torch.stack(images), torch.stack([label.argmax() % 5 for label in labels]))


def perturbed(model, batch, *, size):
    batch.images.requires_grad_()
    nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
    return (batch.images + size * batch.images.grad.sign()).detach()


def run():
    dist.init_process_group("trainmover")
    torch.manual_seed(32)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=5e-2, momentum=0.9)
    data = Data(480)
    sampler = DistributedSampler(data, seed=7)
    loader = DataLoader(data, batch_size=4, sampler=sampler, collate_fn=collate)
    plain = DataLoader(Data(40), batch_size=8, shuffle=True)
    session = Session(model=model, optimizer=optimizer)
    unlabelled = session.cycle(plain)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step in session.steps(loader):
            with step as batch:
                batch.normalize()
                harder = perturbed(net, batch, size=0.1)
                labels, batch.labels = batch.labels, None
                extra, _ = next(unlabelled)
                extra.mul_(0.5).add_(0.1)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(harder), labels)
                loss = loss + 0.1 * model(extra).square().mean()
                loss.backward()
                optimizer.step()
                session.log(loss=loss)
    finish(dist.get_rank(), model)


if __name__ == "__main__":
    run()
