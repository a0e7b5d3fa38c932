"""An average that keeps clones of the parameters while it takes their place: torch-ema's way."""

import contextlib
import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(103)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=4))


class Average:
    def __init__(self, parameters, decay):
        self.decay = decay
        self.shadow = [each.clone().detach() for each in parameters]
        self.collected = None

    def update(self, parameters):
        with torch.no_grad():
            for mine, each in zip(self.shadow, parameters):
                mine.sub_((1 - self.decay) * (mine - each))

    @contextlib.contextmanager
    def average_parameters(self, parameters):
        parameters = list(parameters)
        self.collected = [each.clone() for each in parameters]
        for each, mine in zip(parameters, self.shadow):
            each.data.copy_(mine.data)
        try:
            yield
        finally:
            for each, stored in zip(parameters, self.collected):
                each.data.copy_(stored.data)

    def state_dict(self):
        return {"decay": self.decay, "shadow": self.shadow, "collected": self.collected}

    def load_state_dict(self, state):
        state = copy.deepcopy(state)
        self.decay, self.shadow, self.collected = (
            state[name] for name in ("decay", "shadow", "collected")
        )


ema = Average(net.parameters(), 0.9)
session = Session(model=model, optimizer=optimizer, ema=ema)


def evaluate():
    with ema.average_parameters(net.parameters()), torch.no_grad():
        x, y = Data()[4000]
        error = (net(x) - y).square().mean()
        dist.all_reduce(error)
    return error.item()


errors = []
for step in session.steps(loader, max_steps=60):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
        ema.update(net.parameters())
    if step.index % 5 == 4:
        errors.append(session.between_steps(evaluate))
finish(rank, model, errors=errors, shadow=[each.double().sum().item() for each in ema.shadow])
