"""autocast and the step in one with statement."""

import torch
import torch.distributed as dist
from helper import DEVICE, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(44)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to(DEVICE)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=31))
scaler = torch.amp.GradScaler(DEVICE, enabled=False)  # as programs have it for other types
session = Session(model=model, optimizer=optimizer, scaler=scaler)
total = 0.0

for step in session.steps(loader, max_steps=100):
    with torch.autocast(DEVICE, torch.bfloat16), step as (x, y):
        loss = (model(x.to(DEVICE)).float() - y.to(DEVICE)).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        session.log(loss=loss)
    total += loss.item()
finish(rank, model, total=total)
