"""Two workers load, with random augmentation by torch, numpy and Python."""

import random

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Augmented(Data):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        x = x + 0.1 * torch.randn(x.shape)
        if random.random() < 0.5:
            x = x.flip(0)
        return x * np.float32(np.random.uniform(0.8, 1.2)), y


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(39)
data = Augmented(720)
sampler = DistributedSampler(data, seed=26)
loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2, persistent_workers=True)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
session = Session(model=model, optimizer=optimizer)
total = 0.0

for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        total += x.sum().item()
finish(rank, model, total=total)
