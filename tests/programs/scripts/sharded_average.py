"""Sharded parameters are averaged, clipped and given noise behind the body."""

import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
torch.manual_seed(93)
data = Data(720)
sampler = DistributedSampler(data, seed=5)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 16))
average = copy.deepcopy(model).requires_grad_(False)
fully_shard(model)
fully_shard(average)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
session = Session(model=[model, average], optimizer=optimizer, scheduler=scheduler)
updates = 0


@torch.no_grad()
def update():
    decay = min(0.9, (1 + updates) / (10 + updates))
    for old, new in zip(average.parameters(), model.parameters(), strict=True):
        old.lerp_(new, 1 - decay)


for epoch in range(2):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        scheduler.step()
        updates += 1
        update()
        with torch.no_grad():
            for parameter in model.parameters():
                local = parameter.to_local()
                local.add_(torch.randn_like(local), alpha=1e-4)
        if updates % 5 == 0:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.3, 0.3)
finish(dist.get_rank(), model, average, updates=updates)
