"""A loader that shuffles with a generator of its own: PyTorch's recipe for reproducibility."""

import random

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from trainmover import Session

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
random.seed(0)
g = torch.Generator()
g.manual_seed(3 + rank)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
loader = DataLoader(Data(64), batch_size=8, shuffle=True, generator=g)
session = Session(model=model, optimizer=optimizer)

total = 0.0
for _ in range(9):
    for step in session.steps(loader):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        total += loss.item()
finish(rank, model, total=total)
