"""Copies of the weights that the first rank alone keeps: an average, and the best ones so far."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(71)
net = nn.Sequential(nn.Linear(16, 512), nn.Tanh(), nn.Linear(512, 16))
model = DistributedDataParallel(net)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=12))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
session = Session(model=model, optimizer=optimizer)

average = [each.detach().clone() for each in net.parameters()] if rank == 0 else None
best, best_loss, norms = None, float("inf"), []
for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        if average is not None:
            norms.append(float(net[0].weight.norm()))
            for mine, each in zip(average, net.parameters()):
                mine.mul_(0.9).add_(each.detach(), alpha=0.1)
    if rank == 0 and float(loss) < best_loss:
        best_loss = float(loss)
        best = {name: value.detach().clone() for name, value in net.state_dict().items()}

total = None
if rank == 0:
    total = [float(sum(each.double().sum() for each in one)) for one in (average, best.values())]
finish(rank, model, best_loss=best_loss, norms=norms, total=total)
