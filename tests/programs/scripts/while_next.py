"""A while loop that takes steps from an iterator and begins the data anew."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(46)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
data = Data(720)
sampler = DistributedSampler(data, seed=33)
loader = DataLoader(data, batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)
iteration, epoch = 0, 0
steps = session.steps(loader)

while iteration < 100:
    try:
        step = next(steps)
    except StopIteration:
        epoch += 1
        sampler.set_epoch(epoch)
        steps = session.steps(loader)
        continue
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean() * (1 + epoch)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    iteration += 1
finish(rank, model, iteration=iteration, epoch=epoch)
