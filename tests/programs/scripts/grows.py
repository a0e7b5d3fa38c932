"""A network that gets a layer between two epochs, with optimizer.add_param_group."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
data = Data(720)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=1))
session = Session(model=model, optimizer=optimizer)

total = 0.0
for epoch in range(3):
    if epoch:
        torch.manual_seed(epoch)
        new = nn.Linear(16, 16)
        model.append(new).append(nn.Tanh())
        optimizer.add_param_group({"params": new.parameters()})
    for step in session.steps(loader):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()
            session.log(loss=loss)
        total += loss.item()
finish(rank, model, total=total)
