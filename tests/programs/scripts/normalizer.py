"""An observation normalizer that each rank keeps by itself, passed to the session by name."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class RunningMeanStd:
    def __init__(self, width):
        self.mean = torch.zeros(width)
        self.var = torch.ones(width)
        self.count = 1e-4

    def update(self, x):
        delta = x.mean(0) - self.mean
        total = self.count + len(x)
        self.mean = self.mean + delta * len(x) / total
        m2 = self.var * self.count + x.var(0, unbiased=False) * len(x)
        self.var = (m2 + delta**2 * self.count * len(x) / total) / total
        self.count = total

    def __call__(self, x):
        return (x - self.mean) / (self.var + 1e-8).sqrt()

    def state_dict(self):
        return {"mean": self.mean, "var": self.var, "count": self.count}

    def load_state_dict(self, state):
        self.mean, self.var, self.count = state["mean"], state["var"], state["count"]


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(77)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
normalizer = RunningMeanStd(16)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=10))
session = Session(model=model, optimizer=optimizer, normalizer=normalizer)
for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        loss = (model(normalizer(x)) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    normalizer.update(x)
finish(rank, model, mean=normalizer.mean.tolist(), count=normalizer.count)
