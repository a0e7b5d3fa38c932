"""A replay memory in tensors that is written to in a ring, each rank's own, passed by its name."""

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session


class RingMemory:
    """As libraries have them: storage that never moves, a cursor, and ways to save both."""

    def __init__(self, size, width):
        self.states = torch.zeros(size, width)
        self.rewards = torch.zeros(size)
        self.cursor = self.filled = 0

    def add(self, state, reward):
        self.states[self.cursor] = state
        self.rewards[self.cursor] = reward
        self.cursor = (self.cursor + 1) % len(self.states)
        self.filled = min(self.filled + 1, len(self.states))

    def sample(self, count):
        at = torch.randint(0, self.filled, (count,))
        return self.states[at], self.rewards[at]

    def state_dict(self):
        held = {"states": self.states, "rewards": self.rewards}
        return {"storage": held, "cursor": self.cursor, "filled": self.filled}

    def load_state_dict(self, state):
        self.states.copy_(state["storage"]["states"])
        self.rewards.copy_(state["storage"]["rewards"])
        self.cursor, self.filled = state["cursor"], state["filled"]


class Average:
    """An average of the weights: large, and the same at all ranks."""

    def __init__(self, module):
        self.values = [p.detach().clone() for p in module.parameters()]

    @torch.no_grad()
    def update(self, module):
        for value, p in zip(self.values, module.parameters()):
            value.lerp_(p, 0.1)

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        for value, other in zip(self.values, state["values"]):
            value.copy_(other)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(93)
net = nn.Sequential(nn.Linear(8, 600), nn.ReLU(), nn.Linear(600, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
memory, average = RingMemory(900, 8), Average(net)
session = Session(model=model, optimizer=optimizer, memory=memory, average=average)

torch.manual_seed(100 + rank)
for step in session.steps(range(60)):
    for _ in range(20):
        state = torch.randn(8)
        memory.add(state, state.sum() * (rank + 1))
    with step:
        x, y = memory.sample(16)
        loss = (model(x).squeeze(1) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.log(loss=loss.detach())
    average.update(net)

finish(rank, net, memory=memory.states.sum().item(), average=average.values[0].sum().item())
