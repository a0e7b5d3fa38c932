"""Data that gets harder: the loop tells the data set, and turns dropout off in the end."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Noisy(Data):
    noise = 0.0

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + self.noise * torch.cos(x * index), y


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(67)
dropout = nn.Dropout(0.3)
layers = [nn.Linear(16, 32), nn.ReLU(), dropout, nn.Linear(32, 16)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
data = Noisy(960)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
session = Session(model=model, optimizer=optimizer)

for step in session.steps(loader, epochs=3, max_steps=90):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    data.noise = min(1.0, step.index / 40)
    dropout.p = max(0.0, 0.3 - step.index / 100)
finish(rank, model, noise=data.noise, p=dropout.p)
