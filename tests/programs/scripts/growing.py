"""A Trainer with events, whose meters by phase are objects made while it trains."""

import dataclasses
import enum
from collections import defaultdict
from datetime import datetime, timedelta

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Phase(enum.Enum):
    WARM = 1
    TRAIN = 2
    COOL = 3


@dataclasses.dataclass
class Config:
    lr: float = 0.01
    clip: float = 1.0
    layers: tuple = (16, 32, 16)
    deadline: datetime = datetime(2030, 1, 1)


class Meter:
    __slots__ = ("count", "m2", "mean")

    def __init__(self):
        self.count, self.mean, self.m2 = 0, 0.0, 0.0

    def add(self, value):
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.m2 += delta * (value - self.mean)


class Trainer:
    registry = defaultdict(list)
    total = 0

    def __init__(self, config):
        self.config = config
        self.phase = Phase.WARM
        self.meters = defaultdict(Meter)
        self.pending = timedelta()
        sizes = config.layers
        layers = [m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.Tanh())][:-1]
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.norms = []
        self.model.register_forward_hook(self._after_forward)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)
        self.session = Session(model=self.model, optimizer=self.optimizer)

    def _after_forward(self, module, args, output):
        self.norms.append(output.detach().norm().item())

    @classmethod
    def on(cls, event):
        def wrap(function):
            cls.registry[event].append(function)
            return function

        return wrap

    def fire(self, event, **values):
        for function in self.registry[event]:
            function(self, **values)

    def fit(self, loader, epochs):
        best = {"loss": float("inf"), "at": None}

        def improve(value, at):
            if value < best["loss"]:
                best.update(loss=value, at=at)

        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for step in self.session.steps(loader):
                with step as batch:
                    loss = self.train_step(batch)
                    self.session.log(loss=loss)
                Trainer.total += 1
                self.fire("step", loss=loss.item())
                improve(loss.item(), (epoch, step.index))
            self.fire("epoch", epoch=epoch)
        return best

    def train_step(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        clip = self.config.clip * (0.5 if self.phase is Phase.COOL else 1)
        nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        return loss


@Trainer.on("step")
def measure(trainer, loss):
    trainer.meters[trainer.phase].add(loss)
    trainer.pending += timedelta(milliseconds=1)
    if trainer.phase is Phase.WARM and trainer.total >= 20:
        trainer.phase = Phase.TRAIN


@Trainer.on("epoch")
def cool(trainer, epoch):
    if epoch == 1:
        trainer.phase = Phase.COOL
        for group in trainer.optimizer.param_groups:
            group["lr"] *= 0.1
    trainer.norms = trainer.norms[-5:]


def main():
    dist.init_process_group("trainmover")
    torch.manual_seed(82)
    data = Data(720)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
    trainer = Trainer(Config())
    best = trainer.fit(loader, 3)
    means = {phase.name: (m.count, m.mean) for phase, m in trainer.meters.items()}
    left = [trainer.norms, trainer.pending, Trainer.total]
    finish(dist.get_rank(), trainer.model, best=best, means=means, left=left)


if __name__ == "__main__":
    main()
