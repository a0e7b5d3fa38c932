"""Stochastic weight averaging in its last epochs, and batch norms brought up to date at the end."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(72)
net = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
swa_model = AveragedModel(net)
scheduler = CosineAnnealingLR(optimizer, T_max=100)
swa_scheduler = SWALR(optimizer, swa_lr=0.05)
swa_start = 2
data = Data(720)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
session = Session(
    model=model,
    optimizer=optimizer,
    scheduler=scheduler,
    swa_scheduler=swa_scheduler,
    swa_model=swa_model,
)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
    if epoch >= swa_start:
        swa_model.update_parameters(net)
        swa_scheduler.step()
    else:
        scheduler.step()

update_bn(DataLoader(data, batch_size=32), swa_model)
finish(rank, model, swa_model, lr=optimizer.param_groups[0]["lr"])
