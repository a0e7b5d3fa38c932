"""Batches from a counting iterator: begun once, in a generator that it holds itself."""

import itertools

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(101)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
model = DistributedDataParallel(net)


class Private(torch.optim.Optimizer):
    """Clips what another optimizer steps with; it never calls its base class's __init__."""

    def __init__(self, inner, limit):
        self.original_optimizer, self.limit = inner, limit

    @property
    def param_groups(self):
        return self.original_optimizer.param_groups

    @property
    def state(self):
        return self.original_optimizer.state

    def zero_grad(self, set_to_none=False):
        self.original_optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(net.parameters(), self.limit)
        return self.original_optimizer.step(closure)


class Counting:
    def __init__(self, iterable, total):
        self.iterable, self.total, self.n = iterable, total, 0
        self.itr = iter(self)

    def __len__(self):
        return self.total

    def __iter__(self):
        for each in self.iterable:
            if self.n >= self.total:
                raise RuntimeError("longer than expected")
            self.n += 1
            yield each

    def __next__(self):
        return next(self.itr)


def grouped(batches, size):
    batches = iter(batches)
    while group := list(itertools.islice(batches, size)):
        yield group


def epoch_iterator(epoch):
    batches = [list(range(at, at + 4)) for at in range(0, 720, 4)]
    np.random.RandomState(epoch).shuffle(batches)
    loader = DataLoader(Data(720), batch_sampler=batches[rank::world])
    return Counting(grouped(loader, 2), len(loader) // 2)


optimizer = Private(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), 0.5)
session = Session(model=model, optimizer=optimizer)
for epoch in range(1, 4):
    for step in session.steps(epoch_iterator(epoch)):
        with step as samples:
            optimizer.zero_grad()
            for x, y in samples:
                loss = (model(x) - y).square().mean()
                loss.backward()
            optimizer.step()
            session.log(loss=loss)
finish(rank, model)
