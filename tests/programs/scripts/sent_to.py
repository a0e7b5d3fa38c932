"""A generator that is sent to, with a finally; one with a window over the batches of a loader."""

import collections

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(15)


def average(decay):
    value, rate = None, 1.0
    try:
        while True:
            seen = yield rate
            if seen is not None:
                value = seen if value is None else decay * value + (1 - decay) * seen
                rate = 1.0 / (1.0 + value)
    finally:
        value = None


def windows(loader, size):
    window = collections.deque(maxlen=size)
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        for at, (x, _) in zip(range(1000), loader):
            window.append(x)
            if len(window) == size:
                yield torch.cat(list(window)), at
        epoch += 1


model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
session = Session(model=model, optimizer=optimizer)
data = Data(60)
batches = windows(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)), 3)
smooth = average(0.9)
next(smooth)
for step in session.steps(range(90)):
    with step:
        x, at = next(batches)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean() / (1 + at)
        optimizer.zero_grad()
        loss.backward()
        rate = smooth.send(loss.item())
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * rate
        optimizer.step()
        session.log(loss=loss)
finish(rank, model, rate=rate)
