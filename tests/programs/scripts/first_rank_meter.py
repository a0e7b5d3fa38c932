"""What the first rank alone gives its session beside a larger model: a meter, and a memory."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(73)
net = nn.Sequential(nn.Linear(16, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Linear(1024, 16))
model = DistributedDataParallel(net)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=12))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)


class Meter:
    def __init__(self):
        self.count, self.total = 0, 0.0

    def state_dict(self):
        return {"count": self.count, "total": self.total}

    def load_state_dict(self, state):
        self.count, self.total = state["count"], state["total"]


class Memory:
    """Of what the model said lately."""

    def __init__(self):
        self.held = torch.zeros(64, 8, 16)

    def state_dict(self):
        return {"held": self.held}

    def load_state_dict(self, state):
        self.held.copy_(state["held"])


extras = {"meter": Meter(), "memory": Memory()} if rank == 0 else {}
session = Session(model=model, optimizer=optimizer, **extras)

for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = (out - y).square().mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        if rank == 0:
            extras["meter"].count += 1
            extras["meter"].total += float(loss)
            extras["memory"].held[step.index % 64] = out.detach()

kept = []
if rank == 0:
    kept = [extras["meter"].state_dict(), float(extras["memory"].held.double().sum())]
finish(rank, model, kept=kept)
