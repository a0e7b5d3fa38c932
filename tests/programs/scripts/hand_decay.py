"""Weight decay by hand in front of the forward pass, and a scheduler behind the body."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(33)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=22))
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
lr = 0.05

for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        for p in model.parameters():
            p.data.mul_(1 - 0.1 * lr)
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    scheduler.step()
    lr = scheduler.get_last_lr()[0]
finish(rank, model, lr=lr)
