"""FixMatch as people write it: two iterators over loaders, begun anew when they end."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(5)


class Noisy(Data):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.01 * torch.randn(x.shape), y


model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
session = Session(model=model, optimizer=optimizer)
labelled, unlabelled = Noisy(60), Noisy(96)
labelled_sampler = DistributedSampler(labelled)
labelled_loader = DataLoader(labelled, batch_size=4, sampler=labelled_sampler, drop_last=True)
unlabelled_loader = DataLoader(unlabelled, batch_size=8, shuffle=True, num_workers=2)
labelled_iter = iter(labelled_loader)
unlabelled_iter = iter(unlabelled_loader)
labelled_epoch = 0
for step in session.steps(range(90)):
    with step:
        try:
            x, y = next(labelled_iter)
        except StopIteration:
            labelled_epoch += 1
            labelled_sampler.set_epoch(labelled_epoch)
            labelled_iter = iter(labelled_loader)
            x, y = next(labelled_iter)
        try:
            u, _ = next(unlabelled_iter)
        except StopIteration:
            unlabelled_iter = iter(unlabelled_loader)
            u, _ = next(unlabelled_iter)
        out = model(torch.cat([x, u]))
        loss = nn.functional.mse_loss(out[: len(x)], y) + 0.1 * out[len(x) :].abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
finish(rank, model, epoch=labelled_epoch)
