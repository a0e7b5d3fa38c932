"""A large mean of all ranks' features, changed in place in front of the optimizer."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(19)
encoder = nn.Linear(16, 8192)
head = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)))
optimizer = torch.optim.SGD(head.parameters(), 0.1)
loader = DataLoader(Data(), batch_size=4, sampler=DistributedSampler(Data(), seed=10))
session = Session(model=[head, encoder], optimizer=optimizer)
center = torch.zeros(8192)
for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        with torch.no_grad():
            features = encoder(x).mean(0)
            dist.all_reduce(features)
            center.mul_(0.9).add_(features / world, alpha=0.1)
        optimizer.zero_grad()
        loss = (head(x) - y).pow(2).mean() * (1 + center.square().mean())
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
finish(rank, head, center=center.double().sum().item())
