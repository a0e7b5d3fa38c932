"""A history by epoch whose lists have a second, shorter name."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(81)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
data = Data(720)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=81))
session = Session(model=model, optimizer=optimizer)
history = {}


def mean_of(losses):
    total = torch.tensor(losses).mean()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    losses = []
    history[epoch] = {"lr": optimizer.param_groups[0]["lr"], "losses": losses}
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        losses.append(loss.item())
    mean = session.between_steps(lambda: mean_of(history[epoch]["losses"]))
    for group in optimizer.param_groups:
        group["lr"] *= min(1.0, 0.5 + mean / 3)
finish(rank, model, history=history)
