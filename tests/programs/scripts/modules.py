"""A program of several files: one of them counts, draws and remembers."""

import augment
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(84)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
data = Data(720)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=84))
session = Session(model=model, optimizer=optimizer)

for step in session.steps(loader, epochs=3, max_steps=90):
    with step as (x, y):
        x = x + augment.strength() * torch.ones_like(x)
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    augment.note("loss", loss.item())
finish(rank, model, registry=augment.REGISTRY, calls=augment._calls)
