"""A progress bar of one's own around the steps: a generator with a count and a rate."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


def progress(steps, every, lines):
    """What tqdm does, for a log file."""
    count = 0
    for item in steps:
        yield item
        count += 1
        if count % every == 0:
            lines.append(f"{count} steps done")


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(20)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=10))
session = Session(model=model, optimizer=optimizer)
lines, smooth = [], None

for step in progress(session.steps(loader, max_steps=100), 10, lines):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
finish(rank, model, lines=lines, smooth=smooth)
