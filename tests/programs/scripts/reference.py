"""As the vision references are written: a logger's generator around the steps, meters in it.

The meters are made when they are first asked for, and the best epoch is an object where None was.
"""

import collections

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class SmoothedValue:
    def __init__(self, window=20):
        self.recent = collections.deque(maxlen=window)
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.recent.append(value)
        self.count += n
        self.total += value * n

    def synchronize_between_processes(self):
        both = torch.tensor([self.count, self.total], dtype=torch.float64)
        dist.all_reduce(both)
        self.count, self.total = int(both[0]), both[1].item()


class MetricLogger:
    def __init__(self):
        self.meters = collections.defaultdict(SmoothedValue)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(float(value))

    def __getattr__(self, name):
        if name in self.meters:
            return self.meters[name]
        raise AttributeError(name)

    def log_every(self, iterable, interval, header):
        at = 0
        for each in iterable:
            yield each
            if at % interval == 0:
                print(header, at, {name: one.total for name, one in self.meters.items()})
            at += 1


class Best:
    def __init__(self, epoch, loss):
        self.epoch, self.loss, self.beaten = epoch, loss, []


def train_one_epoch(session, model, criterion, optimizer, loader, epoch):
    model.train()
    logger = MetricLogger()
    for step in logger.log_every(session.steps(loader), 10, f"epoch {epoch}"):
        with step as (x, y):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        logger.update(loss=loss, lr=optimizer.param_groups[0]["lr"])
    return logger


def evaluate(model, criterion, loader):
    model.eval()
    logger = MetricLogger()
    with torch.inference_mode():
        for x, y in logger.log_every(loader, 100, "test"):
            logger.update(loss=criterion(model(x), y))
    logger.loss.synchronize_between_processes()
    return logger.loss.total / logger.loss.count


def main():
    dist.init_process_group("trainmover")
    torch.manual_seed(5)
    layers = (nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    sampler = DistributedSampler(Data(720), seed=6)
    loader = DataLoader(Data(720), batch_size=8, sampler=sampler)
    test = DataLoader(Data(64), batch_size=16)
    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    best, found = None, []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        logger = train_one_epoch(session, model, nn.MSELoss(), optimizer, loader, epoch)
        scheduler.step()
        loss = session.between_steps(lambda: evaluate(model.module, nn.MSELoss(), test))
        if best is None:
            best = Best(epoch, loss)
        elif loss < best.loss:
            best.beaten.append(best.loss)
            best.epoch, best.loss = epoch, loss
        found.append((logger.loss.total, logger.loss.count, list(logger.lr.recent), loss))
    finish(dist.get_rank(), model, found=found, best=vars(best))


main()
