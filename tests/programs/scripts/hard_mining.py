"""Hard examples are drawn more often: the sampler's weights follow the losses."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, WeightedRandomSampler

from trainmover import Session


class Indexed(Data):
    def __getitem__(self, index):
        return index, *super().__getitem__(index)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(73)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = Indexed(600)
generator = torch.Generator().manual_seed(8 + rank)
sampler = WeightedRandomSampler(torch.ones(len(data)), 240, generator=generator)
loader = DataLoader(data, batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)
for epoch in range(3):
    for step in session.steps(loader):
        with step as (index, x, y):
            optimizer.zero_grad()
            losses = nn.functional.mse_loss(model(x), y, reduction="none").mean(1)
            losses.mean().backward()
            optimizer.step()
            session.log(loss=losses.mean())
        sampler.weights[index] = losses.detach().double().sqrt()
finish(rank, model, weights=sampler.weights.sum().item())
