"""A vector-quantised autoencoder: codes begin with samples of all ranks, dead ones are replaced.

How many rows each rank gives is known to rank 0 alone, and which codes are dead differs from step
to step: so do the shapes of what is communicated.
"""

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

CODES, WIDTH = 24, 8


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(CODES, WIDTH))
        self.register_buffer("usage", torch.zeros(CODES))
        self.register_buffer("begun", torch.tensor(False))

    def forward(self, x):
        if not self.begun:
            self.replace(x, torch.ones(CODES, dtype=torch.bool))
            self.begun.fill_(True)
        nearest = torch.cdist(x, self.codes).argmin(1)
        if self.training:
            self.follow(x, nearest)
        return x + (self.codes[nearest] - x).detach()

    @torch.no_grad()
    def follow(self, x, nearest):
        chosen = nn.functional.one_hot(nearest, CODES).float()
        counts, sums = chosen.sum(0), chosen.T @ x
        dist.all_reduce(counts)
        dist.all_reduce(sums)
        self.usage.lerp_(counts, 0.3)
        used = counts > 0
        self.codes[used] = self.codes[used].lerp(sums[used] / counts[used][:, None], 0.3)
        dead = self.usage < 0.5
        if dead.any():
            self.replace(x, dead)
            self.usage[dead] = 1.0

    @torch.no_grad()
    def replace(self, x, which):
        world, wanted = dist.get_world_size(), int(which.sum())
        shares = torch.randint(world, (wanted,)).bincount(minlength=world)
        dist.broadcast(shares, 0)
        rows = []
        for rank, count in enumerate(shares.tolist()):
            given = x[torch.randint(len(x), (count,))].clone()
            dist.broadcast(given, rank)
            rows.append(given)
        self.codes[which] = torch.cat(rows)


Session.init()
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, WIDTH), Codebook(), nn.Linear(WIDTH, 16))
model = DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
torch.manual_seed(100 + rank)
session = Session(model=model, optimizer=optimizer)
replaced = 0
for step in session.steps(range(60)):
    with step:
        x = torch.randn(12, 16)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    replaced += int((net[1].usage == 1.0).sum())
finish(rank, model, replaced=replaced)
