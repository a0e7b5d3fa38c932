"""The best weights so far, of some size, are gone back to when training gets worse."""

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
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 512), nn.Tanh(), nn.Linear(512, 16)))
optimizer = torch.optim.SGD(model.parameters(), 0.9)
loader = DataLoader(Data(), batch_size=4, sampler=DistributedSampler(Data(), seed=8))
session = Session(model=model, optimizer=optimizer)
best_loss, best_state, returns = float("inf"), None, 0


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
    if step.index % 4 == 3:
        mean = session.between_steps(lambda: average(loss.item()))
        if mean is None:
            continue
        if mean < best_loss:
            best_loss = mean
            best_state = {"loss": mean, "weights": copy.deepcopy(model.state_dict())}
        elif mean > 1.1 * best_loss and best_state is not None:
            model.load_state_dict(best_state["weights"])
            returns += 1
model.load_state_dict(best_state["weights"])
finish(rank, model, best_loss=best_loss, returns=returns)
