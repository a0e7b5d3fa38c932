"""enumerate() around the steps; learning rate and logging interval are made from its number."""

import math

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

TOTAL = 110
dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(19)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=10))
session = Session(model=model, optimizer=optimizer)
lines, running = [], 0.0

for i, step in enumerate(session.steps(loader, max_steps=TOTAL), start=1):
    lr = 3e-3 * 0.5 * (1 + math.cos(math.pi * i / TOTAL))
    for group in optimizer.param_groups:
        group["lr"] = lr
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    running += loss.item()
    if i % 25 == 0:
        lines.append(f"step {i}: loss {running / 25:.9f} lr {lr:.9f}")
        running = 0.0
finish(rank, model, lines=lines, i=i)
