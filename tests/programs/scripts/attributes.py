"""A model that keeps state of its own: a temperature, counts, an average, a meter, its noise."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value):
        self.sum += value
        self.count += 1


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.temperature, self.stage = 1.0, 0
        self.load = [0, 0, 0]
        self.usage = torch.ones(3) / 3
        self.meter = Meter()
        self.noise = torch.Generator().manual_seed(5)

    def forward(self, x):
        noise = 0.1 * torch.randn(len(x), 3, generator=self.noise)
        weights = torch.softmax((self.gate(x) + noise) / self.temperature, dim=1)
        self.meter.update(weights.std().item())
        if self.training:
            chosen = weights.argmax(1).bincount(minlength=3)
            self.load = [ours + new for ours, new in zip(self.load, chosen.tolist())]
            self.usage = 0.9 * self.usage + 0.1 * chosen / len(x)
            self.temperature = max(0.5, 0.99 * self.temperature + 0.01 * weights.std().item())
        out = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (weights.unsqueeze(2) * out).sum(1) / (1 + self.stage), (
            weights.mean(0) * self.usage
        ).sum()


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(81)
model = DistributedDataParallel(Experts())
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=12))
session = Session(model=model, optimizer=optimizer)
for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        out, balance = model(x)
        loss = (out - y).pow(2).mean() + 0.1 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    if step.index % 2:
        model.module.stage += 1  # no method of its class does that
net = model.module
finish(
    rank,
    model,
    load=net.load,
    temperature=net.temperature,
    stage=net.stage,
    usage=net.usage.tolist(),
    meter=[net.meter.sum, net.meter.count],
)
