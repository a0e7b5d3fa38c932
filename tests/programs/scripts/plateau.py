"""ReduceLROnPlateau, fed with a validation loss of all ranks."""

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
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)))
optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.05)
data = Data(720)
sampler = DistributedSampler(data, seed=9)
loader = DataLoader(data, batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
rates = []


@torch.no_grad()
def validate():
    model.eval()
    x, y = next(iter(DataLoader(Data(), batch_size=64)))
    total = (model(x) - y).pow(2).mean().reshape(1)
    dist.all_reduce(total)
    model.train()
    return total.item()


for epoch in range(4):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            session.log(loss=loss)
        if step.index % 10 == 9:
            score = session.between_steps(validate)
            if score is not None:
                scheduler.step(score)
            rates.append(optimizer.param_groups[0]["lr"])
finish(rank, model, rates=rates)
