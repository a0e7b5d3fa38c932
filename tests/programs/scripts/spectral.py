"""Spectral norm, a batch that is skipped, a learnable weight of two losses, two loaders at once."""

import itertools

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(68)
layers = [spectral_norm(nn.Linear(16, 24)), nn.LeakyReLU(0.1), spectral_norm(nn.Linear(24, 16))]
model = DistributedDataParallel(nn.Sequential(*layers))
balance = nn.Parameter(torch.zeros(2))
optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [balance], "lr": 1e-4}])
first, second = Data(720), Data(256)
one = DataLoader(first, 8, sampler=DistributedSampler(first, seed=1), drop_last=True)
two = DataLoader(second, 4, sampler=DistributedSampler(second, seed=2), drop_last=True)
session = Session(model=model, optimizer=optimizer)
skipped = 0

for epoch in range(3):
    one.sampler.set_epoch(epoch)
    for step in session.steps(zip(one, itertools.cycle(two), strict=False)):
        with step as ((x, y), (u, v)):
            near = (model(torch.cat([x, u])) - torch.cat([y, v])).pow(2)
            losses = torch.stack([near[: len(x)].mean(), near[len(x) :].abs().mean()])
            loss = (losses * torch.exp(-balance) + balance).sum()
            mean = losses.detach().sum()
            dist.all_reduce(mean)
            if float(mean) > 30 or step.index % 17 == 16:
                skipped += 1
                session.log(loss=loss)
                continue
            optimizer.zero_grad()
            loss.backward()
            if balance.grad is not None:
                dist.all_reduce(balance.grad)
            optimizer.step()
            session.log(loss=loss)
finish(rank, model, balance=balance.tolist(), skipped=skipped)
