"""A small framework: callbacks, a state of the trainer, closures, and a context around it all."""

import contextlib
import dataclasses
import math

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


@dataclasses.dataclass
class State:
    step: int = 0
    epoch: float = 0.0
    best: float = math.inf
    patience: int = 0
    history: list = dataclasses.field(default_factory=list)


class Callback:
    def on_step(self, state, logs):
        pass


class Smooth(Callback):
    def __init__(self):
        self.value = None

    def on_step(self, state, logs):
        self.value = logs["loss"] if self.value is None else 0.9 * self.value + 0.1 * logs["loss"]
        logs["smooth"] = self.value


class KeepBest(Callback):
    def on_step(self, state, logs):
        if logs["smooth"] < state.best - 1e-4:
            state.best, state.patience = logs["smooth"], 0
        else:
            state.patience += 1


class Record(Callback):
    def on_step(self, state, logs):
        state.history.append((state.step, round(logs["smooth"], 6), logs["lr"]))


def scheduled(optimizer, total):
    count = 0

    def step():
        nonlocal count
        count += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * 0.5 * (1 + math.cos(math.pi * count / total))
        return count

    return step


@contextlib.contextmanager
def training(model):
    was = model.training
    model.train()
    try:
        yield model
    finally:
        model.train(was)


def fit(model, loader, *, epochs):
    optimizer = torch.optim.RMSprop(model.parameters(), 0.01)
    session = Session(model=model, optimizer=optimizer)
    state, callbacks = State(), [Smooth(), KeepBest(), Record()]
    total = epochs * len(loader)
    advance = scheduled(optimizer, total)
    with training(model), contextlib.suppress(StopIteration):
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for step in session.steps(loader):
                with step as (x, y):
                    optimizer.zero_grad()
                    loss = (model(x) - y).abs().mean()
                    loss.backward()
                    optimizer.step()
                    session.log(loss=loss)
                state.step += 1
                state.epoch = state.step / len(loader)
                advance()
                logs = {"loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]}
                for callback in callbacks:
                    callback.on_step(state, logs)
    return state


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(64)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ELU(), nn.Linear(32, 16)))
data = Data(720)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=2))
state = fit(model, loader, epochs=3)
finish(rank, model, state=state)
