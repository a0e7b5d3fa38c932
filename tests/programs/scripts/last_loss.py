"""Each rank weighs its loss by its own loss of the step before, and warms up by a scheduler."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


def main():
    dist.init_process_group("trainmover")
    rank = dist.get_rank()
    torch.manual_seed(41)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=90)
    loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=27))
    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    last, jumps, noise = 1.0, [], 0.0
    for step in session.steps(loader, max_steps=90):
        with step as (x, y):
            loss = (model(x + noise) - y).pow(2).mean() / (1.0 + last)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        scheduler.step()
        if loss.item() > last:
            jumps.append((step.index, scheduler.get_last_lr()[0]))
        last = loss.item()
        noise = 0.01 * torch.randn(()).item()
    finish(rank, model, last=last, jumps=jumps)


main()
