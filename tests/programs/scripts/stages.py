"""Stages of training by name, each with a loss of its own; a table whose keys are pairs."""

import enum

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Stage(enum.Enum):
    WARMUP = "warmup"
    MAIN = "main"
    COOLDOWN = "cooldown"


def squares(out, y):
    return (out - y).pow(2).mean()


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(82)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
data = Data(720)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=82))
session = Session(model=model, optimizer=optimizer)
stage = Stage.WARMUP
rates = {Stage.WARMUP: 5e-4, Stage.MAIN: 4e-3, Stage.COOLDOWN: 1e-4}
taken = dict.fromkeys(Stage, 0)
criterion, table = squares, {}

for step in session.steps(loader, epochs=3, max_steps=90):
    optimizer.param_groups[0]["lr"] = rates[stage]
    with step as (x, y):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    taken[stage] += 1
    cell = (stage.name, int(10 * loss.item()) % 4)
    table[cell] = table.get(cell, 0.0) + loss.item()
    if stage is Stage.WARMUP and taken[stage] == 6:
        stage, criterion = Stage.MAIN, nn.functional.smooth_l1_loss
    elif stage is Stage.MAIN and taken[stage] == 50:
        stage, criterion = Stage.COOLDOWN, nn.functional.l1_loss
finish(
    rank,
    model,
    stage=stage.name,
    table=sorted(table.items()),
    taken={each.name: n for each, n in taken.items()},
)
