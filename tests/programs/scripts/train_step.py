"""The body of a step in a function that returns its loss."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


def train_step(step):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        return loss.item()


def train():
    losses = []
    for i, step in enumerate(session.steps(loader, max_steps=100)):
        losses.append(train_step(step))
        if i % 20 == 0:
            milestones.append((i, losses[-1]))
    return losses


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(45)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=32))
session = Session(model=model, optimizer=optimizer)
milestones = []
losses = train()
finish(rank, model, losses=losses, milestones=milestones)
