"""Schedulers that the session was not given: in a sequence, on a plateau, of the program's own."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler as rates
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class InverseRoot(rates.LRScheduler):
    def __init__(self, optimizer, warmup):
        self.warmup = warmup
        super().__init__(optimizer)

    def get_lr(self):
        step = max(self.last_epoch, 1)
        scale = min(step / self.warmup, (self.warmup / step) ** 0.5)
        return [base * scale for base in self.base_lrs]


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(84)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
session = Session(model=model, optimizer=optimizer)
sampler = DistributedSampler(Data(720), seed=3)
loader = DataLoader(Data(720), batch_size=8, sampler=sampler)
warmup = rates.LinearLR(optimizer, start_factor=0.1, total_iters=8)
cosine = rates.CosineAnnealingWarmRestarts(optimizer, 10)
makers = [
    lambda: rates.SequentialLR(optimizer, [warmup, cosine], [8]),
    lambda: rates.ReduceLROnPlateau(optimizer, patience=2, factor=0.5),
    lambda: InverseRoot(optimizer, warmup=6),
]
seen = []
for epoch, make in enumerate(makers):
    sampler.set_epoch(epoch)
    scheduler = make()
    for step in session.steps(loader):
        with step as (x, y):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            dist.all_reduce(mean := loss.detach().clone())
            optimizer.step()
            if epoch != 1:
                scheduler.step()
            session.log(loss=loss)
        if epoch == 1:
            scheduler.step(round(mean.item(), 3))
        seen.append(optimizer.param_groups[0]["lr"])
finish(rank, model, seen=seen, last=scheduler.state_dict())
