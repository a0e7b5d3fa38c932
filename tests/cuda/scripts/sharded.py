"""FSDP2 on a GPU, with parameters gathered and gradients reduced in bfloat16."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
mesh = init_device_mesh("cuda", (world,))
torch.manual_seed(41)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 16))
model.to(device)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=28))
session = Session(model=model, optimizer=optimizer)
log = []

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = (model(x).float() - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        session.log(loss=mean / world)
    if step.index % 10 == 9:
        log.append((step.index, mean.item() / world))
finish(rank, model, log=log)
