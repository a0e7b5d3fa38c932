"""Statistics of batch norm are averaged behind each epoch, and what the epoch used is deleted."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(61)
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
model = DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
sampler = DistributedSampler(Data(384), seed=5)
loader = DataLoader(Data(384), batch_size=4, sampler=sampler)
session = Session(model=model, optimizer=optimizer)


def train():
    total = 0.0
    for step in session.steps(loader):
        with step as (x, y):
            outputs = model(x)
            loss = (outputs - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        total += loss.item()
    del loss, outputs
    return total


def spread_statistics():
    for name, buffer in net.named_buffers():
        if "mean" in name or "var" in name:
            dist.all_reduce(buffer)
            buffer /= world


totals = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    totals.append(train())
    spread_statistics()
finish(rank, model, totals=totals)
