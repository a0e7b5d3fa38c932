"""DiLoCo: an inner optimizer at each rank, an outer one for the mean of all every eighth step."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(51)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
outer_params = [p.detach().clone().requires_grad_() for p in model.parameters()]
outer = torch.optim.SGD(outer_params, lr=0.7, momentum=0.9, nesterov=True)
data = Data(2400)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=4))
session = Session(model=model, optimizer=[inner, outer])
for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        inner.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        inner.step()
        if (step.index + 1) % 8 == 0:
            for o, p in zip(outer_params, model.parameters()):
                o.grad = o.data - p.data
                dist.all_reduce(o.grad)
                o.grad /= world
            outer.step()
            with torch.no_grad():
                for o, p in zip(outer_params, model.parameters()):
                    p.copy_(o)
        session.log(loss=loss)
finish(rank, model, outer=[float(p.sum()) for p in outer_params])
