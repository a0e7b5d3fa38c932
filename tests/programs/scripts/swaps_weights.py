"""An evaluation with averaged weights in plain code, and a collective in it: see test_swaps."""

import json

import torch
import torch.distributed as dist
from helper import OUT, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(97)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
average = [each.detach().clone() for each in net.parameters()]
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=4))
session = Session(model=model, optimizer=optimizer)


def evaluate():
    stored = [each.detach().clone() for each in net.parameters()]
    for live, each in zip(net.parameters(), average):
        live.data.copy_(each)
    with torch.no_grad():
        x, y = Data()[4000 + rank]
        error = (net(x) - y).square().mean()
    dist.all_reduce(error)
    for live, each in zip(net.parameters(), stored):
        live.data.copy_(each)
    return error.item()


errors = []
for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    for mine, each in zip(average, net.parameters()):
        mine.lerp_(each.detach(), 0.05)
    if step.index % 12 == 11:
        try:
            errors.append(evaluate())
        except Exception as error:
            (OUT / f"error-{rank}.json").write_text(json.dumps([type(error).__name__, str(error)]))
            raise
finish(rank, model, errors=errors)
