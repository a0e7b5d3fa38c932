"""Noise from generators of the GPU: the global one, and one of the program's own."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
device = torch.device("cuda")
torch.manual_seed(23)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to(device)
)
average = {name: each.detach().clone() for name, each in model.module.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=12))
session = Session(model=model, optimizer=optimizer)
noise = torch.Generator(device).manual_seed(200 + rank)
torch.cuda.manual_seed(300 + rank)
drawn = []

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        x, y = x.to(device), y.to(device)
        order = torch.randperm(len(x), generator=noise, device=device)
        mixed = 0.7 * x + 0.3 * x[order] + 0.1 * torch.randn_like(x)
        optimizer.zero_grad()
        loss = (model(mixed) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, each in model.module.named_parameters():
                average[name].lerp_(each, 0.1)
        session.log(loss=loss)
    if step.index % 10 == 9:
        drawn.append(torch.rand((), device=device, generator=noise).item())
finish(
    rank,
    model,
    drawn=drawn,
    average={name: each.sum().item().hex() for name, each in average.items()},
)
