"""Buffers that change behind the vote: in averages of weights, in the model, in statistics."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Net(nn.Module):
    """Counts its updates in a buffer, as detectors and averaged networks do."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 16)
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        return self.head(self.body(x))


class Statistics(nn.Module):
    """Of a weight, alike at all ranks; of this rank's losses, and how many were above the mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("norm", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("above", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update(self, loss, weights):
        self.norm.lerp_(weights.norm(), 0.1)
        self.mean.lerp_(loss.detach(), 0.1)
        if loss > self.mean:
            self.above += 1


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(84)
model = DistributedDataParallel(Net())
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
statistics = Statistics()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
session = Session(model=model, optimizer=optimizer, ema=ema, statistics=statistics)
data = Data(720)
sampler = DistributedSampler(data, seed=3)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.module.updates += 1
            ema.update_parameters(model)
            statistics.update(loss, model.module.head.weight)
            session.log(loss=loss)
finish(rank, model, ema, statistics)
