"""As masked autoencoders are trained: a count around a logger, a scaler in an object.

The rate follows from the count, and gradients are accumulated over two bodies.
"""

import math
from collections import defaultdict, deque

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class SmoothedValue:
    def __init__(self, window_size=20):
        self.deque = deque(maxlen=window_size)
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.deque.append(value)
        self.count += n
        self.total += value * n

    @property
    def global_avg(self):
        return self.total / self.count


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(float(value))

    def add_meter(self, name, meter):
        self.meters[name] = meter

    def log_every(self, iterable, interval):
        for at, each in enumerate(iterable):
            yield each
            if at % interval == 0:
                print(at, {name: meter.global_avg for name, meter in self.meters.items()})


class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cpu")

    def __call__(self, loss, optimizer, parameters, update_grad):
        self._scaler.scale(loss).backward()
        if update_grad:
            self._scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            self._scaler.step(optimizer)
            self._scaler.update()

    def state_dict(self):
        return self._scaler.state_dict()

    def load_state_dict(self, state):
        self._scaler.load_state_dict(state)


def adjust(optimizer, epoch):
    rate = 1e-2 * epoch if epoch < 1 else 1e-3 + 4.5e-3 * (1 + math.cos(math.pi * (epoch - 1) / 4))
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1)


def train_one_epoch(session, model, loader, optimizer, epoch, scaler):
    logger = MetricLogger()
    logger.add_meter("lr", SmoothedValue(window_size=1))
    optimizer.zero_grad()
    for at, step in enumerate(logger.log_every(session.steps(loader), 20)):
        with step as (x, y):
            if at % 2 == 0:
                adjust(optimizer, at / len(loader) + epoch)
            mask = (torch.rand_like(x) > 0.5).float()
            loss = ((model(x * mask) - y).pow(2) * (1 - mask)).sum() / (1 - mask).sum()
            scaler(loss / 2, optimizer, model.parameters(), update_grad=at % 2 == 1)
            if at % 2 == 1:
                optimizer.zero_grad()
            session.log(loss=loss)
        logger.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
    return {name: meter.global_avg for name, meter in logger.meters.items()}


def main():
    dist.init_process_group("trainmover")
    rank = dist.get_rank()
    torch.manual_seed(5)
    layers = (nn.Linear(16, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 16))
    model = DistributedDataParallel(nn.Sequential(*layers))
    plain = [each for each in model.parameters() if each.ndim == 1]
    decayed = [each for each in model.parameters() if each.ndim > 1]
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": decayed, "lr_scale": 0.5}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05)
    scaler = NativeScaler()
    sampler = DistributedSampler(Data(720), seed=6)
    loader = DataLoader(Data(720), batch_size=8, sampler=sampler, drop_last=True)
    session = Session(model=model, optimizer=optimizer, scaler=scaler)
    torch.manual_seed(rank)
    found = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        found.append(train_one_epoch(session, model, loader, optimizer, epoch, scaler))
    finish(rank, model, found=found)


main()
