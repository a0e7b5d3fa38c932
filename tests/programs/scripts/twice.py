"""A function with the loop in it, called twice."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(12)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
sampler = DistributedSampler(Data(1200), seed=5)
loader = DataLoader(Data(1200), batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)


def train(epoch, lr):
    sampler.set_epoch(epoch)
    for group in optimizer.param_groups:
        group["lr"] = lr
    total, count = 0.0, 0
    for step in session.steps(loader):
        with step as (x, y):
            loss = (model(x) - y).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        total += loss.item() * len(x)
        count += len(x)
    return total / count


first = train(0, 1e-2)
second = train(1, 1e-3)
finish(rank, model, first=first, second=second)
