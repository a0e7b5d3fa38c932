"""Sharpness-aware minimization: parameters are changed by hand before the second pass."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

RHO = 0.05
dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(30)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=19))
session = Session(model=model, optimizer=optimizer)
parameters = list(model.parameters())

for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        norm = torch.stack([p.grad.norm() for p in parameters]).norm() + 1e-12
        offsets = [RHO * p.grad / norm for p in parameters]
        with torch.no_grad():
            for p, offset in zip(parameters, offsets, strict=True):
                p.add_(offset)
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p, offset in zip(parameters, offsets, strict=True):
                p.sub_(offset)
        optimizer.step()
        session.log(loss=loss)
finish(rank, model)
