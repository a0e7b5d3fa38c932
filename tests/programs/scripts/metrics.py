"""Metrics are averaged behind each step, as timm and torchvision do; barriers end epochs."""

import sys

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


def reduce_tensor(tensor):
    averaged = tensor.clone()
    dist.all_reduce(averaged, op=dist.ReduceOp.SUM)
    averaged /= world
    return averaged


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(8)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.9)
sampler = DistributedSampler(Data(720), seed=9)
loader = DataLoader(Data(720), batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
dist.barrier()

for epoch in range(3):
    sampler.set_epoch(epoch)
    losses, accuracies = Meter(), Meter()
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            out = model(x)
            loss = (out - y).pow(2).mean()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        losses.update(reduce_tensor(loss.detach()).item(), x.size(0))
        accuracies.update(reduce_tensor((out.detach() > y).float().mean()).item())
        if step.index % 10 == 3:
            told = [None] * world
            dist.all_gather_object(told, {"rank": rank, "loss": loss.item()})
            spread = max(each["loss"] for each in told) - min(each["loss"] for each in told)
        if step.index % 10 == 5:
            stop = torch.tensor(int(rank == 0 and losses.avg < 0.01))
            dist.broadcast(stop, src=0)
            if stop.item():
                break
    scheduler.step(losses.avg)
    if rank == 0:
        torch.save(model.state_dict(), f"{sys.argv[1]}/checkpoint.pt")
    dist.barrier()
finish(
    rank,
    model,
    losses=losses.avg,
    accuracies=accuracies.avg,
    rate=optimizer.param_groups[0]["lr"],
    spread=spread,
)
