"""No wrapper, gradients averaged by hand; weights are clipped behind some steps, in the body."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(61)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(Data(2400), batch_size=8, sampler=DistributedSampler(Data(2400), seed=4))
session = Session(model=model, optimizer=optimizer)

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
        if step.index % 3 == 2:
            for p in model.parameters():
                p.data.clamp_(-0.15, 0.15)
        session.log(loss=loss)
finish(rank, model)
