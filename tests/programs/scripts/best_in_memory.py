"""The best weights so far are kept in a variable and put back at the end."""

import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(17)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16)))
optimizer = torch.optim.SGD(model.parameters(), 0.3)
loader = DataLoader(Data(), batch_size=4, sampler=DistributedSampler(Data(), seed=8))
session = Session(model=model, optimizer=optimizer)
best_loss, best_weights, best_step = float("inf"), None, -1


def average(value):
    value = torch.tensor([value])
    dist.all_reduce(value)
    return value.item() / world


for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    if step.index % 5 == 4:
        mean = session.between_steps(lambda: average(loss.item()))
        if mean is not None and mean < best_loss:
            best_loss, best_step = mean, step.index
            best_weights = copy.deepcopy(model.module.state_dict())
model.module.load_state_dict(best_weights)
finish(rank, model, best_loss=best_loss, best_step=best_step)
