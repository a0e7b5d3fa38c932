"""Average meters as in the ImageNet example, a dictionary of them, and a deque."""

import collections

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class AverageMeter:
    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.value = self.average = self.total = self.count = 0

    def update(self, value, n=1):
        self.value = value
        self.total += value * n
        self.count += n
        self.average = self.total / self.count


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(22)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=11))
session = Session(model=model, optimizer=optimizer)
meters = {name: AverageMeter(name) for name in ("loss", "error", "norm")}
recent = collections.deque(maxlen=20)
history = collections.defaultdict(list)
epoch_loss = torch.zeros(1)

for step in session.steps(loader, max_steps=105):
    with step as (x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = (out - y).pow(2).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        session.log(loss=loss)
    meters["loss"].update(loss.item(), len(x))
    meters["error"].update((out - y).abs().max().item())
    meters["norm"].update(norm.item())
    recent.append(loss.item())
    epoch_loss += loss.detach()
    if step.index % 30 == 29:
        for name, meter in meters.items():
            history[name].append(meter.average)
            meter.reset()
finish(
    rank,
    model,
    history=dict(history),
    recent=list(recent),
    left=[(m.total, m.count, m.value) for m in meters.values()],
    epoch_loss=epoch_loss.item(),
)
