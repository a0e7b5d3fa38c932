"""A loader made anew in each epoch, of a permutation by NumPy's global generator."""

import random

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(72)
np.random.seed(5)
random.seed(6)
data = Data(720)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
session = Session(model=model, optimizer=optimizer)
order = list(range(len(data)))
for epoch in range(3):
    mine = np.random.permutation(len(data))[rank::world]
    random.shuffle(order)
    subset = torch.utils.data.Subset(data, [order[i] for i in mine])
    loader = DataLoader(subset, batch_size=8, num_workers=2 if epoch == 1 else 0)
    for step in session.steps(loader):
        with step as (x, y):
            x = x + 0.01 * np.random.randn() + 0.01 * random.random()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.float()), y)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
finish(rank, model, first=order[:8])
