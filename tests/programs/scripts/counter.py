"""Counters that every script has: a learning rate and the end of the loop are made from them."""

import torch
import torch.distributed as dist
from helper import DEVICE, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(DEVICE)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=2))
session = Session(model=model, optimizer=optimizer, loader=loader)
global_step, running, best = 0, 0.0, float("inf")
seen = []


def total(value):
    values = torch.tensor([value], device=DEVICE)
    dist.all_reduce(values)
    return float(values) / dist.get_world_size()


for i, step in enumerate(session.steps(loader)):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * min(1.0, (global_step + 1) / 50)
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x.to(DEVICE)) - y.to(DEVICE)).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    running = 0.9 * running + 0.1 * float(loss.detach())
    global_step += 1
    if global_step % 10 == 0:
        mean = session.between_steps(lambda: total(running))
        best = min(best, mean)
        seen.append((global_step, i, mean))
    if global_step >= 100:
        break
finish(rank, model, global_step=global_step, running=running, best=best, i=i, seen=seen)
