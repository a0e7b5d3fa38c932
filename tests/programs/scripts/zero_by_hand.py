"""Each rank has an optimizer of its share of the parameters, and sends what it changed."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(67)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=12))
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(parameters[rank::world], 1e-3)
session = Session(model=model, optimizer=optimizer)

for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        model.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        for at, parameter in enumerate(parameters):
            dist.broadcast(parameter.data, at % world)
        session.log(loss=loss)
kept = [float(state["exp_avg"].sum()) for state in optimizer.state.values()]
finish(rank, model, kept=kept)
