"""Gradients of three bodies, exchanged in the last of them only."""

import contextlib

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

EVERY = 3
dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(27)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(Data(), batch_size=4, sampler=DistributedSampler(Data(), seed=16))
session = Session(model=model, optimizer=optimizer)
updates = 0

for step in session.steps(loader, max_steps=102):
    last = (step.index + 1) % EVERY == 0
    with step as (x, y):
        with contextlib.nullcontext() if last else model.no_sync():
            loss = (model(x) - y).pow(2).mean() / EVERY
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        session.log(loss=loss)
    updates += last
finish(rank, model, updates=updates)
