"""A program whose own generator yields from inside ``with step``: refused at its first step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session


def batches(session, loader):
    for step in session.steps(loader):
        with step as batch:
            yield batch


dist.init_process_group("trainmover")
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = [torch.ones(2, 4)] * 20
session = Session(model=model, optimizer=optimizer)

for x in batches(session, loader):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
