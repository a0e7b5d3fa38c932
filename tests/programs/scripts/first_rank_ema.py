"""An average of the weights that the first rank alone keeps."""

import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(67)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=12))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)


class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update(self):
        self.updates += 1
        for mine, theirs in zip(self.net.parameters(), net.parameters()):
            mine.lerp_(theirs, min(0.5, 1 / float(self.updates)))


average = Average() if rank == 0 else None
session = Session(model=[model, average] if average else model, optimizer=optimizer)

for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        if average is not None:
            average.update()
finish(rank, model, *([average] if average else []))
