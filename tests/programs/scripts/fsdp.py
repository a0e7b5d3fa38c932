"""Parameters and optimizer state are sharded over all ranks; the loss is averaged for the log."""

import torch
import torch.distributed as dist
from helper import DEVICE, Data, finish
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(DEVICE, (world,))
torch.manual_seed(41)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 16))
model.to(DEVICE)
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=28))
session = Session(model=model, optimizer=optimizer)
log = []


@torch.no_grad()
def evaluate():
    x, y = Data()[7]
    return (model(x[None].to(DEVICE)) - y.to(DEVICE)).square().mean().item()


for step in session.steps(loader, max_steps=100):
    if step.index % 12 == 0:  # the first is in front of all training
        log.append(session.between_steps(evaluate))
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x.to(DEVICE)) - y.to(DEVICE)).pow(2).mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        session.log(loss=mean / world)
    if step.index % 10 == 9:
        log.append((step.index, mean.item() / world))
finish(rank, model, log=log)
