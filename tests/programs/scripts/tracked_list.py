"""Averages of weights in a list that is tracked, and in a copy of the list of parameters."""

import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(8)
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=2))
session = Session(model=model, optimizer=optimizer, loader=loader)
tracked = session.track(averages=[torch.zeros(16, 16)[:, :4].clone(), torch.zeros(16)])
averages = copy.deepcopy(list(net.parameters()))

for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            tracked.averages[0].lerp_(net[2].weight[:, :4], 0.1)
            tracked.averages[1].lerp_(net[2].bias, 0.1)
        for average, parameter in zip(averages, net.parameters()):
            average.data.mul_(0.9).add_(parameter.data, alpha=0.1)
        session.log(loss=loss)
finish(
    rank,
    model,
    tracked=[each.tolist() for each in tracked.averages],
    averages=[each.sum().item() for each in averages],
)
