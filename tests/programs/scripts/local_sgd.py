"""Local SGD: each rank trains by itself, and every fourth step all take the mean."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(51)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = Data(2400)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
session = Session(model=model, optimizer=optimizer)

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        optimizer.zero_grad()
        with model.no_sync():
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
        optimizer.step()
        if step.index % 4 == 3:
            with torch.no_grad():
                for p in model.parameters():
                    dist.all_reduce(p.data)
                    p.data.div_(world)
        session.log(loss=loss)
finish(rank, model)
