"""No wrapper: gradients are averaged by hand, as in PyTorch's tutorial."""

import itertools
from decimal import Decimal

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def run(rank, size):
    torch.manual_seed(1234)
    data = Data(2400)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    session = Session(model=model, optimizer=optimizer)
    ticks = itertools.count()
    epoch_loss = 0.0
    seen = 0
    spent = Decimal(0)
    for step in session.steps(loader, max_steps=90):
        with step as (data, target):
            optimizer.zero_grad()
            output = model(data)
            loss = nn.functional.mse_loss(output, target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
            session.log(loss=loss)
        seen = next(ticks)
        spent += Decimal("0.1")
    finish(rank, model, epoch_loss=epoch_loss, seen=seen, spent=spent)


dist.init_process_group("trainmover")
run(dist.get_rank(), dist.get_world_size())
