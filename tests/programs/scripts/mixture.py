"""A mixture of tasks: an iterable of one's own draws from two loaders, by weights that change."""

import random

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Mixture:
    def __init__(self, loaders, weights):
        self.loaders, self.weights = loaders, weights
        self.rng = random.Random(3)
        self.drawn = [0] * len(loaders)

    def __iter__(self):
        running = [iter(loader) for loader in self.loaders]
        while True:
            (k,) = self.rng.choices(range(len(running)), self.weights)
            try:
                batch = next(running[k])
            except StopIteration:
                running[k] = iter(self.loaders[k])
                batch = next(running[k])
            self.drawn[k] += 1
            yield k, batch


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 32)
        self.heads = nn.ModuleList([nn.Linear(32, 16), nn.Linear(32, 16)])

    def forward(self, x, k):
        return self.heads[k](torch.relu(self.body(x)))


def loader_over(length, workers):
    data = Data(length)
    sampler = DistributedSampler(data, seed=length)
    return DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(88)
model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
session = Session(model=model, optimizer=optimizer)
mixture = Mixture([loader_over(240, 0), loader_over(96, 1)], [2.0, 1.0])
for step in session.steps(mixture, max_steps=90):
    with step as (k, (x, y)):
        loss = (model(x, k) - (y if k else -y)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    if step.committed and step.index == 30:
        mixture.weights = [1.0, 3.0]
finish(rank, model, drawn=mixture.drawn)
