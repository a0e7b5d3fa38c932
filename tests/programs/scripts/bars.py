"""Progress bars and iterators of classes around the steps, and counts around these."""

import torch
import torch.distributed as dist
from helper import Data, finish
from rich.progress import track
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Bar:
    def __init__(self, iterable):
        self.iterable, self.n = iterable, 0

    def __iter__(self):
        for each in self.iterable:
            yield each
            self.n += 1


class Timed:
    def __init__(self, iterable):
        self.iterator, self.seen = iter(iterable), 0

    def __iter__(self):
        return self

    def __next__(self):
        item = next(self.iterator)
        self.seen += 1
        return item


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(5)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(Data(720), seed=6)
loader = DataLoader(Data(720), batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)


def train(step, at):
    with step as (x, y):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + at)
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)


for i, step in enumerate(Bar(session.steps(loader))):
    train(step, i)
sampler.set_epoch(1)
for i, step in enumerate(track(session.steps(loader), total=30, transient=True)):
    train(step, i)
sampler.set_epoch(2)
for i, (j, step) in enumerate(Bar(enumerate(Timed(session.steps(loader)), 3))):
    train(step, i + j)
sampler.set_epoch(3)
for i, step in enumerate(Timed(Bar(session.steps(loader))), start=100):
    train(step, i)
finish(rank, model, last=i, rate=optimizer.param_groups[0]["lr"])
