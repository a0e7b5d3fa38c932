"""Stochastic weight averaging: torch's AveragedModel, updated in every fifth step."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(47)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
averaged = AveragedModel(model.module)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scheduler = SWALR(optimizer, swa_lr=0.02, anneal_epochs=10)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=34))
session = Session(model=model, optimizer=optimizer, scheduler=scheduler, averaged=averaged)

for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    if (step.index + 1) % 5 == 0:
        averaged.update_parameters(model.module)
        scheduler.step()
finish(rank, model, averaged, averages=int(averaged.n_averaged))
