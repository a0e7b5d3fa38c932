"""Gradients of four bodies for each step of the optimizer, a scheduler, evaluations in between."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

ACCUMULATE = 4
dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(26)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
loader = DataLoader(Data(), batch_size=4, sampler=DistributedSampler(Data(), seed=15))
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
optimizer_steps, errors = 0, []


@torch.no_grad()
def evaluate():
    x = torch.ones(4, 16) * (rank + 1)
    error = (model.module(x) - x).pow(2).mean()
    dist.all_reduce(error)
    return error.item()


for i, step in enumerate(session.steps(loader, max_steps=110)):
    with step as (x, y):
        loss = (model(x) - y).pow(2).mean() / ACCUMULATE
        loss.backward()
        if (i + 1) % ACCUMULATE == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        session.log(loss=loss)
    if (i + 1) % ACCUMULATE == 0:
        optimizer_steps += 1
    if (i + 1) % 10 == 0:  # every other time gradients of two bodies are held
        errors.append(session.between_steps(evaluate))
finish(rank, model, optimizer_steps=optimizer_steps, errors=errors, lr=scheduler.get_last_lr())
