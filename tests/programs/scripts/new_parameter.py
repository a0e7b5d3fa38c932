"""The body makes a parameter anew, and gives it to the optimizer: sampled classes (PartialFC)."""

import torch
import torch.distributed as dist
from helper import finish
from torch import nn

from trainmover import Session


class Sampled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(40, 12) * 0.1)
        self.register_buffer("momentum", torch.zeros(40, 12))
        self.active = nn.Parameter(torch.empty(0, 0))
        self.index = None

    def sample(self, optimizer):
        group = optimizer.param_groups[-1]
        if self.index is not None:
            self.weight[self.index] = self.active.detach()
            self.momentum[self.index] = optimizer.state[self.active]["momentum_buffer"]
            del optimizer.state[self.active]
        self.index = torch.randperm(40)[:10].sort()[0]
        self.active = nn.Parameter(self.weight[self.index])
        group["params"][0] = self.active
        optimizer.state[self.active]["momentum_buffer"] = self.momentum[self.index]


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = Sampled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
session = Session(model=model, optimizer=optimizer)

for step in session.steps(range(90)):
    with step:
        model.sample(optimizer)
        loss = (model.active @ torch.ones(12, 1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
finish(rank, model)
