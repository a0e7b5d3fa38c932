"""Results in containers of the program's own classes: a dictionary with attributes, a list."""

import collections
import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class AttrDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class EasyDict(dict):
    def __init__(self, **members):
        for name, member in members.items():
            setattr(self, name, member)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        super().__setitem__(name, value)


class History(list):
    def __init__(self, window):
        super().__init__()
        self.window, self.given = window, 0

    def append(self, value):
        super().append(value)
        self.given += 1
        del self[: -self.window]

    def mean(self):
        return sum(self) / len(self)


class Tally(collections.Counter):
    def commonest(self):
        return max(self, key=lambda name: (self[name], name))


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(8)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 16)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
sampler = DistributedSampler(Data(720), seed=9)
loader = DataLoader(Data(720), batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)
state = AttrDict(step=0, epoch=EasyDict(seen=0, first=None), best=None)
losses, kinds = History(5), Tally()

for epoch in range(3):
    sampler.set_epoch(epoch)
    state.epoch = EasyDict(seen=0, first=None)
    for step in session.steps(loader):
        with step as (x, y):
            for group in optimizer.param_groups:
                group["lr"] = 0.3 / (1 + state.step / 30 + state.epoch.seen / 10)
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            (loss * (1 + 0.1 * kinds["better"] / (1 + losses.given))).backward()
            optimizer.step()
            session.log(loss=loss)
        total = loss.detach()
        kinds["better" if not losses or total.item() < losses.mean() else "worse"] += 1
        losses.append(total.item())
        state.step += 1
        state.epoch.seen += 1
        if state.epoch.first is None:
            state.epoch.first = AttrDict(loss=total.item())
    mean = session.between_steps(lambda: float(sum(losses)) / len(losses))
    if state.best is None or (mean is not None and mean < state.best.loss):
        weights = copy.deepcopy(model.module.state_dict())
        state.best = EasyDict(loss=mean, epoch=epoch, weights=weights)
finish(
    rank,
    model,
    step=state.step,
    seen=[state.epoch.seen, state.epoch.first.loss],
    best=[state.best.epoch, float(sum(each.sum() for each in state.best.weights.values()))],
    losses=[*losses, losses.given],
    kinds=kinds.commonest(),
)
