"""A sampler of the program's own, whose difficulty the loop raises."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler

from trainmover import Session


class Staged(Sampler):
    def __init__(self, length, rank, world):
        self.length, self.rank, self.world = length, rank, world
        self.hardest, self.epoch, self.seen = 100, 0, []

    def harder(self, by):
        self.hardest = min(self.length, self.hardest + by)

    def __iter__(self):
        order = torch.randperm(
            self.hardest, generator=torch.Generator().manual_seed(self.epoch)
        ).tolist()
        self.epoch += 1
        self.seen.append(self.hardest)
        yield from (order * 8)[self.rank : 240 * self.world : self.world]

    def __len__(self):
        return 240


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(74)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = Data(1000)
sampler = Staged(len(data), rank, dist.get_world_size())
loader = DataLoader(data, batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)
for epoch in range(3):
    mean = 0.0
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        mean += loss.item() / 30
    sampler.harder(60 + int(50 * mean))
finish(rank, model, hardest=sampler.hardest, seen=sampler.seen)
