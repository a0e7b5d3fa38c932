"""Noise, mix-up and choices from random generators of the program's own."""

import random

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(23)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=12))
session = Session(model=model, optimizer=optimizer)
mix = np.random.default_rng(100 + rank)
noise = torch.Generator().manual_seed(200 + rank)
choice = random.Random(300 + rank)
chosen = []

for step in session.steps(loader, max_steps=100):
    weight = float(mix.beta(0.4, 0.4))
    sigma = choice.choice([0.0, 0.1, 0.2])
    with step as (x, y):
        order = torch.randperm(len(x), generator=noise)
        mixed = weight * x + (1 - weight) * x[order]
        mixed = mixed + sigma * torch.randn(x.shape, generator=noise)
        target = weight * y + (1 - weight) * y[order]
        optimizer.zero_grad()
        loss = (model(mixed) - target).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    if choice.random() < 0.3:
        chosen.append((step.index, int(mix.integers(1000))))
finish(
    rank, model, chosen=chosen, next=(choice.random(), float(mix.random()), noise.initial_seed())
)
