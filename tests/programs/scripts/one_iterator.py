"""YOLO's InfiniteDataLoader: workers that live as long as it does, one iterator for all epochs."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Augmented(Data):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(x.shape), y


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(5)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
session = Session(model=model, optimizer=optimizer)
data = Augmented(360)
sampler = DistributedSampler(data)
loader = InfiniteDataLoader(data, batch_size=4, sampler=sampler, num_workers=2)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
finish(rank, model)
