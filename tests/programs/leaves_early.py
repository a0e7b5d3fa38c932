"""A program that ends in its shadow iterations, in one of the ways in which programs end."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

how = sys.argv[1]
dist.init_process_group("trainmover")
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = [torch.ones(2, 4)] * 400
session = Session(model=model, optimizer=optimizer, loader=loader)

for step in session.steps(loader):
    with step as x:
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if session.is_shadow:
        if how == "break":
            break
        if how == "exit":
            sys.exit(3)
        torch.ones(2) @ torch.ones(3)
