"""In front of each body weights decay by hand, and an average of them is taken."""

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
torch.manual_seed(41)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
average = copy.deepcopy(net)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=13))
session = Session(model=model, optimizer=optimizer, average=average)

for step in session.steps(loader, max_steps=80):
    with torch.no_grad():
        for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
            mean.lerp_(weight, 0.1)
            weight.mul_(0.999)
    with step as (x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
finish(rank, net, average)
