"""A batch sampler that shuffles a long list of buckets again in every pass; a loader for each."""

import random

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler

from trainmover import Session


class Buckets(Sampler):
    def __init__(self, length):
        self.batches = [range(at, at + 8) for at in range(0, length - 8, 2)]

    def __len__(self):
        return 12

    def __iter__(self):
        random.shuffle(self.batches)
        yield from self.batches[rank : 12 * world : world]


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(89)
random.seed(90)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
session = Session(model=model, optimizer=optimizer)
data, buckets = Data(3000), Buckets(3000)
for _ in range(7):
    loader = DataLoader(data, batch_sampler=buckets, num_workers=2)
    for step in session.steps(loader):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
finish(rank, model)
