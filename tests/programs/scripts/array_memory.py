"""A memory in a NumPy array that the session is given by name, alike at all ranks."""

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
torch.manual_seed(79)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)))
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=12))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)


class Memory:
    """Of how the weights went."""

    def __init__(self):
        self.held, self.count = np.zeros((256, 512), dtype=np.float32), 0

    def add(self, weight):
        self.held[self.count % 256] += weight.detach().flatten().numpy()
        self.count += 1

    def state_dict(self):
        return {"held": self.held, "count": self.count}

    def load_state_dict(self, state):
        self.held, self.count = state["held"].copy(), state["count"]


memory = Memory()
session = Session(model=model, optimizer=optimizer, memory=memory)

for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        memory.add(model.module[0].weight)

finish(rank, model, count=memory.count, held=memory.held.astype(np.float64).sum())
