"""Outputs in an object, a list and an attribute, a name for a weight: all read behind the step."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(113)


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = (
            nn.Linear(16, 512),
            nn.BatchNorm1d(512),
            nn.Linear(512, 16),
        )
        self.last.bias.requires_grad_(False)

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.first(x)))
        return Output(self.last(hidden), hidden)


net = Net()
model = DistributedDataParallel(net)
optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-3)
loader = DataLoader(Data(), batch_size=16, sampler=DistributedSampler(Data(), seed=12))
session = Session(model=model, optimizer=optimizer)


class Trainer:
    def __init__(self):
        self.seen, self.features = [], None

    def step(self, x, y):
        weight, mean = net.first.weight.data, net.norm.running_mean
        optimizer.zero_grad()
        output = model(x)
        parts = [output.hidden[:8], output.hidden[8:]]
        self.features = output.hidden.square()
        loss = (output.logits - y).square().mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        told = output.hidden.max(), parts[1].min(), self.features.mean(), weight.norm(), mean.sum()
        self.seen.append([float(each) for each in told])


trainer = Trainer()
for step in session.steps(loader, max_steps=70):
    with step as (x, y):
        trainer.step(x, y)
finish(rank, model, seen=trainer.seen)
