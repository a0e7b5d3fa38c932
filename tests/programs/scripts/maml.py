"""Meta-learning with torch.func: an inner step is differentiated through."""

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.func import functional_call, grad, vmap

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(74)
model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
tasks = torch.Generator().manual_seed(100 + rank)
session = Session(model=model, optimizer=optimizer)


def loss_of(parameters, x, y):
    return (functional_call(model, parameters, (x,)) - y).pow(2).mean()


def adapted_loss(parameters, x1, y1, x2, y2):
    gradients = grad(loss_of)(parameters, x1, y1)
    adapted = {name: value - 0.1 * gradients[name] for name, value in parameters.items()}
    return loss_of(adapted, x2, y2)


def sample(count):
    amplitude = torch.rand(count, 1, 1, generator=tasks) * 4 + 0.1
    phase = torch.rand(count, 1, 1, generator=tasks) * 3.14
    x = torch.rand(2, count, 10, 1, generator=tasks) * 10 - 5
    y = amplitude * torch.sin(x + phase)
    return x[0], y[0], x[1], y[1]


average = None
iteration = 0
while iteration < 90:
    for step in session.steps(range(30)):
        with step:
            parameters = dict(model.named_parameters())
            losses = vmap(adapted_loss, in_dims=(None, 0, 0, 0, 0))(parameters, *sample(4))
            loss = losses.mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
            optimizer.step()
            session.log(loss=loss)
        value = losses.detach().mean().item()
        average = value if average is None else 0.95 * average + 0.05 * value
        iteration += 1
finish(rank, model, average=average, iteration=iteration)
