"""The prefetcher of apex's ImageNet example: one batch ahead, None at the end of an epoch."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class DataPrefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.mean = torch.full((16,), 0.1)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = None
            self.next_target = None
            return
        self.next_input = self.next_input.float().sub_(self.mean)

    def next(self):
        x, y = self.next_input, self.next_target
        self.preload()
        return x, y


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(5)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
session = Session(model=model, optimizer=optimizer)
data = Data(370)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
seen = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    prefetcher = DataPrefetcher(loader)
    x, y = prefetcher.next()
    for step in session.steps(range(len(loader))):
        with step:
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        seen += len(x)
        x, y = prefetcher.next()
finish(rank, model, seen=seen)
