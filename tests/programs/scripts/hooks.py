"""An optimizer for each parameter, stepped by hooks in the backward pass."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(34)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizers = {p: torch.optim.Adam([p], 2e-3) for p in model.parameters()}
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=23))
session = Session(model=model, optimizer=list(optimizers.values()))


def step_in_backward(parameter):
    dist.all_reduce(parameter.grad)
    parameter.grad /= world
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_in_backward)

for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        session.log(loss=loss)
finish(rank, model)
