"""An optimizer that notes in its groups what it sums of gradients, as Prodigy does."""

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(107)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)))
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=14))


class Adapts(torch.optim.Optimizer):
    def __init__(self, params, lr=0.5):
        super().__init__(params, {"lr": lr, "d": 0.01, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            seen = sum(float(p.grad.square().sum()) for p in group["params"])
            group["numerator"] = 0.95 * group.get("numerator", 0.0) + seen
            group["d"] = max(group["d"], 0.1 * group["numerator"] ** 0.5)
            group["k"] += 1
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"] * group["d"])


optimizer = Adapts(model.parameters())
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
norms = []

for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        session.log(loss=loss)
        norms.append(model.module[0].weight.detach().norm().numpy().copy())
group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
finish(rank, model, group=group, norms=np.stack(norms).tobytes())
