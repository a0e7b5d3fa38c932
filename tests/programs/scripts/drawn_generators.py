"""Generators of every kind beside the loop."""

import itertools
import math

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(16)


def epochs(loader):
    for epoch in range(1000):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            yield batch, epoch


def counted(loader):
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


@torch.no_grad()
def answers(model):
    asked = 0
    while True:
        asked = (asked + 1) % 13
        yield model(torch.full((4, 16), asked / 13))


def warmup(base):
    at = 0
    while True:
        at += 1
        yield base * min(1.0, at / 10) * (1 + math.cos(at / 50)) / 2


class Source:
    def __init__(self, data, width):
        self.loader = DataLoader(data, batch_size=width, sampler=DistributedSampler(data))
        self.batches = counted(self.loader)
        self.seen = 0

    def __call__(self):
        x, _ = next(self.batches)
        self.seen += len(x)
        return x


model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
session = Session(model=model, optimizer=optimizer)
data, more = Data(1000), Data(30)
more_loader = DataLoader(more, batch_size=4, sampler=DistributedSampler(more))
extra = epochs(more_loader)
source = Source(Data(40), 4)
scaled = (x * 0.5 for x, _ in DataLoader(data, batch_size=4, shuffle=True))
rates = warmup(1e-2)
answered = answers(model.module)
total = 0
for step in session.steps(range(90)):
    (z, w), age = next(extra)
    with step:
        x = torch.cat([source(), next(scaled), z])
        for group in optimizer.param_groups:
            group["lr"] = next(rates)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean() / (1 + age)
        loss = loss + (model(x[:4]) - next(answered)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    total += age
finish(rank, model, seen=source.seen, total=total, age=age)
