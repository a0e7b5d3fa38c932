"""A scheduler that follows each rank's own loss: learning rates part, and then the replicas do."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(23)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.7, patience=3)
data = Data(2400)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    scheduler.step(loss.item())
finish(rank, model, rate=optimizer.param_groups[0]["lr"], best=scheduler.best)
