"""torch.compile around DDP on a GPU: kernels of Triton, some of them with dropout."""

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
torch.manual_seed(47)
layers = [nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 16)]
wrapped = DistributedDataParallel(nn.Sequential(*layers).to(device))
model = torch.compile(wrapped)
optimizer = torch.optim.AdamW(wrapped.parameters(), 2e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=29))
session = Session(model=wrapped, optimizer=optimizer)
total = 0.0

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    total += loss.item()
finish(rank, wrapped, total=total)
