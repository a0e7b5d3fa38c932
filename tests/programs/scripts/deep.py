"""A framework whose numbers are many objects deep, with slots, frozen states and named tuples."""

import dataclasses
from typing import NamedTuple

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


@dataclasses.dataclass(slots=True)
class Meter:
    total: float = 0.0
    count: int = 0

    def add(self, value):
        self.total += value
        self.count += 1

    @property
    def mean(self):
        return self.total / max(1, self.count)


@dataclasses.dataclass(frozen=True)
class State:
    step: int = 0
    smooth: float = 0.0


class Best(NamedTuple):
    norm: float = float("inf")
    at: int = -1


class Metrics:
    def __init__(self):
        self.meters = {"loss": Meter(), "norm": Meter()}


class Logger:
    def __init__(self):
        self.metrics = Metrics()
        self.layers = [Meter() for _ in range(100)]


class Callback:
    def __init__(self, logger):
        self.logger = logger

    def on_step(self, loss, norm):
        self.logger.metrics.meters["loss"].add(loss)
        self.logger.metrics.meters["norm"].add(norm)
        self.logger.layers[int(1000 * loss) % 100].add(loss)


class Fit:
    def __init__(self, callbacks):
        self.callbacks = callbacks


class Trainer:
    def __init__(self):
        self.fit_loop = Fit([Callback(Logger())])


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(89)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
data = Data(720)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=89))
session = Session(model=model, optimizer=optimizer)
trainer, state, best = Trainer(), State(), Best()

for step in session.steps(loader, epochs=3, max_steps=90):
    metrics = trainer.fit_loop.callbacks[0].logger.metrics
    optimizer.param_groups[0]["lr"] = 2e-3 / (1 + metrics.meters["norm"].mean)
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        session.log(loss=loss)
    for callback in trainer.fit_loop.callbacks:
        callback.on_step(loss.item(), norm.item())
    smooth = 0.9 * state.smooth + 0.1 * loss.item()
    state = dataclasses.replace(state, step=state.step + 1, smooth=smooth)
    if norm.item() < best.norm:
        best = Best(norm.item(), step.index)
logger = trainer.fit_loop.callbacks[0].logger
finish(
    rank,
    model,
    state=state,
    best=best,
    meters={k: (m.total, m.count) for k, m in logger.metrics.meters.items()},
    layers=[m.count for m in logger.layers],
)
