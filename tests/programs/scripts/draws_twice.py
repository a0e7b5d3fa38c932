"""Two micro-batches in a body, drawn from an iterator that begins its loader anew by itself."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(73)


class Cycle:
    def __init__(self, iterable):
        self.iterable, self.epoch, self._iterator = iterable, 0, None

    def __next__(self):
        if self._iterator is None:
            self._iterator = iter(self.iterable)
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self.iterable)
            self.epoch += 1
            return next(self._iterator)


model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
sampler = DistributedSampler(Data(168), seed=9)
batches = Cycle(DataLoader(Data(168), batch_size=8, sampler=sampler))
session = Session(model=model, optimizer=optimizer)
seen = []

for step in session.steps(range(90)):
    with step:
        optimizer.zero_grad()
        for micro in range(2):
            x, y = next(batches)
            seen.append(float(x.sum()))
            loss = (model(x) - y).square().mean() / 2
            loss.backward()
            seen.append(loss.item())
        optimizer.step()
        session.log(loss=loss)
finish(rank, model, epoch=batches.epoch, seen=seen)
