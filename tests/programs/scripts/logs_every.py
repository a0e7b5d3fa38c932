"""A reference script: its logger yields the steps, a class schedules, an evaluation gathers."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class MetricLogger:
    def __init__(self):
        self.lines = []

    def log_every(self, iterable, freq, header):
        width = len(str(len(iterable)))
        for i, each in enumerate(iterable):
            yield each
            if i % freq == 0 or i == len(iterable) - 1:
                self.lines.append(f"{header} [{i:{width}d}/{len(iterable)}]")


class Warmup:
    def __init__(self, optimizer, warmup):
        self.optimizer, self.warmup, self.taken = optimizer, warmup, 0

    def step(self):
        self.taken += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * min(self.taken**-0.5, self.taken * self.warmup**-1.5)
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


class Evaluator:
    def __init__(self):
        self.errors = []

    def update(self, error):
        self.errors.append(error)


@torch.no_grad()
def evaluate(model):
    evaluator = Evaluator()
    for index in range(4):
        x, y = Data()[index]
        evaluator.update((model(x) - y).square().mean().item())
    return {"error": sum(evaluator.errors)}, evaluator


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(27)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
optimizer = Warmup(torch.optim.Adam(net.parameters(), betas=(0.9, 0.98)), warmup=40)
sampler = DistributedSampler(Data(512), seed=3)
loader = DataLoader(Data(512), batch_size=4, sampler=sampler)
session = Session(model=model, optimizer=optimizer)
errors = []
logger = MetricLogger()

for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in logger.log_every(session.steps(loader), 8, f"epoch {epoch}"):
        with step as (x, y):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
    stats, gathered = session.between_steps(lambda: evaluate(net))
    errors.append(stats["error"])
finish(rank, model, errors=errors, lines=logger.lines, taken=optimizer.taken)
