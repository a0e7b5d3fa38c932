"""Gradients of four bodies for each step of the optimizer, with a learning-rate scheduler."""

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
optimizer_steps = 0

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
finish(rank, model, optimizer_steps=optimizer_steps, lr=scheduler.get_last_lr())
