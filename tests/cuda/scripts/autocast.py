"""autocast on a GPU: bfloat16, or float16 with a gradient scaler that skips steps."""

import sys

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
device = torch.device("cuda")
half = torch.float16 if "float16" in sys.argv else torch.bfloat16
torch.manual_seed(44)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 16)).to(device)
)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
scaler = torch.amp.GradScaler("cuda", enabled=half is torch.float16, growth_interval=7)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=31))
session = Session(model=model, optimizer=optimizer, scaler=scaler)
total, skipped = 0.0, 0

for step in session.steps(loader, max_steps=90):
    before = scaler.get_scale()
    with step as (x, y):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", half):
            loss = (model(x).float() - y).pow(2).mean()
        if step.index % 13 == 12 and scaler.is_enabled():
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        session.log(loss=loss)
    skipped += scaler.get_scale() < before
    total += loss.item() if loss.isfinite() else 0.0
finish(rank, model, total=total, skipped=skipped, scale=scaler.get_scale())
