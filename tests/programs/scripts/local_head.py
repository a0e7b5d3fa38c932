"""Federated with a head of its own at each rank: a shared body in DDP, a head that is not."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(82)
body = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.ReLU()))
torch.manual_seed(82 + rank)
head = nn.Linear(24, 16)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=13))
session = Session(model=[body, head], optimizer=optimizer)
for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        loss = (head(body(x)) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
finish(rank, body, head)
