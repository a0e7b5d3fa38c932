"""A temperature that no model holds, and values that are too large for variables of the loop."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(5)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
temperature = nn.Parameter(torch.ones(()))
optimizer = torch.optim.AdamW([*model.parameters(), temperature], 1e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=2))
session = Session(model=model, optimizer=optimizer, loader=loader)
counters = session.track(global_step=0, queue=torch.zeros(600, 16))
also = session.track(best=float("inf"))

for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) * temperature + counters.queue.mean() - y).pow(2).mean()
        loss.backward()
        dist.all_reduce(temperature.grad)
        counters.queue = torch.cat([counters.queue[1:], model.module[2].bias.detach()[None]])
        optimizer.step()
        session.log(loss=loss)
    counters.global_step += 1
    also.best = min(also.best, float(temperature.detach()))
values = {"global_step": counters.global_step, "best": also.best}
values |= {"queue": float(counters.queue.sum()), "temperature": float(temperature.detach())}
finish(rank, model, **values)
