"""torchdata's StatefulDataLoader, epoch by epoch, with augmentation and dropout at random."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from trainmover import Session


class Augmented(Data):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(x.shape), y


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(40 + rank)
data = Augmented(720)
sampler = StatefulDistributedSampler(data, seed=27)
loader = StatefulDataLoader(data, batch_size=8, sampler=sampler, num_workers=0)
layers = [nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
session = Session(model=model, optimizer=optimizer)
means = []

for epoch in range(3):
    sampler.set_epoch(epoch)
    losses = []
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        losses.append(loss.item())
    means.append(sum(losses) / len(losses))
finish(rank, model, means=means)
