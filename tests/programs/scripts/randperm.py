"""All data in tensors, shuffled by a permutation, and cut by positions in a range."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(71)
xs = torch.stack([Data()[i][0] for i in range(720)])
ys = xs.roll(1, dims=1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
session = Session(model=model, optimizer=optimizer)
losses = []
for epoch in range(3):
    perm = torch.randperm(len(xs))
    total = 0.0
    for step in session.steps(range(0, len(xs), 8 * world)):
        with step as start:
            idx = perm[start + 8 * rank : start + 8 * rank + 8]
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(xs[idx]), ys[idx])
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        total += loss.item()
    losses.append(total)
finish(rank, model, losses=losses)
