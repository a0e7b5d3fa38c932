"""A running average of the weights in a dictionary, changed in place in each body."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(18)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 16)))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(Data(), batch_size=4, sampler=DistributedSampler(Data(), seed=9))
session = Session(model=model, optimizer=optimizer)


class EMA:
    def __init__(self, model, decay=0.9):
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.backup = {}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p, alpha=1 - self.decay)

    @torch.no_grad()
    def swap(self, model):
        self.backup = {name: p.detach().clone() for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            p.copy_(self.shadow[name])

    @torch.no_grad()
    def restore(self, model):
        for name, p in model.named_parameters():
            p.copy_(self.backup[name])
        self.backup = {}


def evaluate():
    ema.swap(model.module)
    with torch.no_grad():
        x, y = Data()[4000]
        error = (model.module(x) - y).pow(2).mean()
    dist.all_reduce(error)
    ema.restore(model.module)
    return error.item()


ema = EMA(model.module)
errors = []
for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        ema.update(model.module)
        session.log(loss=loss)
    if step.index % 5 == 4:
        errors.append(session.between_steps(evaluate))
digest = [value.double().sum().item() for value in ema.shadow.values()]
finish(rank, model, errors=errors, digest=digest)
