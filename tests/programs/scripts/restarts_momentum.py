"""Momentum is forgotten in front of every second body; each layer has a rate of its own."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(43)
net = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(8)])
model = DistributedDataParallel(net)
groups = [{"params": [p], "lr": 0.05 / (1 + i)} for i, p in enumerate(net.parameters())]
optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=14))
session = Session(model=model, optimizer=optimizer)

for i, step in enumerate(session.steps(loader, max_steps=80)):
    if i % 2 == 1:
        optimizer.state.clear()
    for group in optimizer.param_groups:
        group["lr"] *= 0.995
    with step as (x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
finish(rank, net, rates=[group["lr"] for group in optimizer.param_groups])
