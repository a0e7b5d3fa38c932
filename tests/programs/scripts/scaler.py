"""A gradient scaler that skips steps whose gradients overflow."""

import torch
import torch.distributed as dist
from helper import DEVICE, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(31)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to(DEVICE)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**16, growth_interval=7)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=20))
session = Session(model=model, optimizer=optimizer, scaler=scaler)
skipped = 0

for step in session.steps(loader, max_steps=100):
    before = scaler.get_scale()
    with step as (x, y):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = (model(x.to(DEVICE)) - y.to(DEVICE)).float().pow(2).mean()
        if step.index % 13 == 12:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        session.log(loss=loss)
    skipped += scaler.get_scale() < before
finish(rank, model, skipped=skipped, scale=scaler.get_scale())
