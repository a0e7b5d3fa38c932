"""The loss is averaged over all ranks for the log, behind the optimizer's step."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(35)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=24))
session = Session(model=model, optimizer=optimizer)
log = []

for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean /= world
        session.log(loss=mean)
    if step.index % 10 == 0:
        log.append((step.index, mean.item()))
finish(rank, model, log=log)
