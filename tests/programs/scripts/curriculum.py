"""Harder data from epoch to epoch: a new loader each time, weighted sampling, a learning rate."""

import random

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler

from trainmover import Session


def loader_of(epoch, rank, world):
    hardness = np.linspace(0.1, 1.0, 512)
    mine = list(range(rank, 512, world))
    weights = [hardness[index] ** epoch for index in mine]
    shuffle = torch.Generator().manual_seed(1000 * epoch + rank)
    sampler = WeightedRandomSampler(weights, 200 + 40 * epoch, generator=shuffle)
    return DataLoader(Subset(Data(), mine), batch_size=8, sampler=sampler)


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(62)
random.seed(rank)
np.random.seed(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
session = Session(model=model, optimizer=optimizer, scheduler=schedule)
log = []

for epoch in range(3):
    total, seen = 0.0, 0
    for step in session.steps(loader_of(epoch, rank, world)):
        with step as (x, y):
            mix = np.random.beta(0.4, 0.4)
            order = list(range(len(x)))
            random.shuffle(order)
            x, y = mix * x + (1 - mix) * x[order], mix * y + (1 - mix) * y[order]
            loss = (model(x.float()) - y.float()).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            session.log(loss=loss)
        total, seen = total + loss.item() * len(x), seen + len(x)
    log.append({"epoch": epoch, "mean": total / seen, "lr": schedule.get_last_lr()[0]})
finish(rank, model, log=log)
