"""Sharded training with sums of its losses over ranks, behind steps and behind epochs."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(8)
model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 16))
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
sampler = DistributedSampler(Data(720), seed=9)
loader = DataLoader(Data(720), batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
history = []


def train(epoch):
    sampler.set_epoch(epoch)
    sums = torch.zeros(2)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            session.log(loss=loss)
        sums[0] += loss.item()
        sums[1] += len(x)
        if step.index % 3 == 1:
            mean = torch.stack([loss.detach(), torch.tensor(float(rank))])
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            history.append(mean[0].item())
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    return (sums[0] / sums[1]).item()


means = []
for epoch in range(3):
    means.append(train(epoch))
    scheduler.step()
    dist.barrier()
finish(rank, model, means=means, history=history, rate=optimizer.param_groups[0]["lr"])
