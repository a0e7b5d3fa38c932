"""A runner with hooks from a registry, counts in their classes, a hub that its metaclass holds."""

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

HOOKS = {}


def register(kind):
    HOOKS[kind.__name__] = kind
    return kind


class Singleton(type):
    instances = {}

    def __call__(cls):
        if cls not in cls.instances:
            cls.instances[cls] = super().__call__()
        return cls.instances[cls]


class Hub(metaclass=Singleton):
    def __init__(self):
        self.history, self.line = np.array([]), ""

    def update(self, loss):
        self.history = np.append(self.history, loss)


class Hook:
    calls = 0

    def after_step(self, runner):
        type(self).calls += 1


@register
class Rate(Hook):
    def before_step(self, runner):
        for group in runner.optimizer.param_groups:
            group["lr"] = 0.1 * 0.97**runner.step


@register
class Log(Hook):
    def after_step(self, runner):
        super().after_step(runner)
        if runner.step % 10 == 9:
            Hub().line = f"{runner.step}: {Hub().history[-10:].mean():.5f}"


@register
class Best(Hook):
    score = None

    def after_epoch(self, runner):
        mean = Hub().history[-20:].mean()
        if Best.score is None or mean < Best.score:
            Best.score = float(mean)
            state = runner.model.module.state_dict()
            runner.best = {name: value.clone() for name, value in state.items()}


class Runner:
    def __init__(self):
        self.model = DistributedDataParallel(nn.Linear(16, 16))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.session = Session(model=self.model, optimizer=self.optimizer)
        self.hooks = [kind() for kind in HOOKS.values()]
        self.step = self.epoch = 0
        self.best = None

    def call(self, name):
        for hook in self.hooks:
            getattr(hook, name, lambda _: None)(self)

    def train(self, loader, sampler, epochs):
        while self.epoch < epochs:
            sampler.set_epoch(self.epoch)
            for step in self.session.steps(loader):
                self.call("before_step")
                with step as (x, y):
                    loss = nn.functional.mse_loss(self.model(x), y)
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                    self.session.log(loss=loss)
                Hub().update(loss.item())
                self.call("after_step")
                self.step += 1
            self.call("after_epoch")
            self.epoch += 1


def main():
    dist.init_process_group("trainmover")
    torch.manual_seed(85)
    sampler = DistributedSampler(Data(720), seed=3)
    runner = Runner()
    runner.train(DataLoader(Data(720), batch_size=8, sampler=sampler), sampler, 3)
    seen = {"line": Hub().line, "mean": Hub().history.mean(), "steps": runner.step}
    calls = [type(hook).calls for hook in runner.hooks]
    best = {name: value.sum().item() for name, value in runner.best.items()}
    finish(dist.get_rank(), runner.model, **seen, calls=calls, score=Best.score, best=best)


main()
