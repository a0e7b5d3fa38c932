"""Gradients of two batches are accumulated; an object that the session knows counts them."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Accumulation:
    def __init__(self):
        self.count = 0

    def is_full(self):
        self.count += 1
        return self.count % 2 == 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 100)
accumulation = Accumulation()
data = Data(720)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=1))
session = Session(model=model, optimizer=optimizer, scheduler=scheduler, accumulation=accumulation)

rates, steps = [], 0
for step in session.steps(loader, epochs=3):
    with step as (x, y):
        loss = (model(x) - y).pow(2).mean() / 2
        loss.backward()
        if accumulation.is_full():
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            steps += 1
        session.log(loss=loss)
    rates.append(scheduler.get_last_lr()[0])
finish(rank, model, rates=rates, steps=steps, count=accumulation.count)
