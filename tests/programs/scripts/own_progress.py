"""A learning rate that follows each rank's way through its own data, and no wrapper."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(29)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
data = Data(2400)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
session = Session(model=model, optimizer=optimizer)
progress = 0.0

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        progress += x.abs().mean().item() / 200
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * max(0.1, 1 - progress)
        optimizer.step()
        session.log(loss=loss)
finish(rank, model, progress=progress)
