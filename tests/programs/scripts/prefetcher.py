"""A prefetcher that is one batch ahead of the loop, with augmentation and dropout at random."""

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
        return x + 0.1 * torch.randn(x.shape), y


class Prefetcher:
    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        self.stream = iter(self.loader)
        self.preload()
        return self

    def preload(self):
        self.following = next(self.stream, None)

    def __next__(self):
        batch = self.following
        if batch is None:
            raise StopIteration
        self.preload()
        return batch


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(70 + rank)
data = Augmented(720)
sampler = DistributedSampler(data, seed=6)
loader = Prefetcher(DataLoader(data, batch_size=8, sampler=sampler))
layers = [nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
session = Session(model=model, optimizer=optimizer)
seen = 0

for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        seen += len(x)
finish(rank, model, seen=seen)
