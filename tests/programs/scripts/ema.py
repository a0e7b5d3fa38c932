"""A running average of the weights, updated by hand, and weights that are clipped."""

import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(32)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
ema = copy.deepcopy(model.module).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=21))
session = Session(model=model, optimizer=optimizer, ema=ema)
num_updates = 0

for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        for p in model.parameters():
            p.data.clamp_(-0.2, 0.2)
        session.log(loss=loss)
    num_updates += 1
    decay = min(0.99, (1 + num_updates) / (10 + num_updates))
    with torch.no_grad():
        for average, value in zip(ema.parameters(), model.module.parameters(), strict=True):
            average.mul_(decay).add_(value, alpha=1 - decay)
finish(rank, model, ema, num_updates=num_updates)
