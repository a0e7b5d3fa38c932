"""Hooks that count and average: of modules and of the optimizer's step; nothing else names them."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


def cooling():
    calls = 0

    def hook(module, inputs, output):
        nonlocal calls
        calls += 1
        return output * (1 + 1 / calls)

    return hook


class Noise:
    """Less of it from pass to pass."""

    def __init__(self):
        self.left = 1.0

    def __call__(self, module, inputs):
        self.left *= 0.98
        return (inputs[0] + self.left * torch.sin(inputs[0]),)


class Damped:
    """A gradient that is damped by how large it was so far."""

    def __init__(self):
        self.seen = []

    def __call__(self, module, gradients, above):
        self.seen = [*self.seen[-9:], gradients[0].abs().mean().item()]
        return (gradients[0] / (1 + sum(self.seen)),)


class AutoClip:
    """Clips to the median of the norms so far."""

    def __init__(self):
        self.norms = []

    def __call__(self, optimizer, args, kwargs):
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        norms = [each.grad.norm() for each in parameters]
        self.norms.append(torch.stack(norms).norm().item())
        limit = sorted(self.norms)[len(self.norms) // 2]
        nn.utils.clip_grad_norm_(parameters, limit / 2)


class Average:
    def __init__(self):
        self.weight = None

    def __call__(self, optimizer, args, kwargs):
        weight = optimizer.param_groups[0]["params"][0].detach()
        self.weight = weight.clone() if self.weight is None else self.weight.lerp(weight, 0.1)


def build():
    first, last = nn.Linear(16, 32), nn.Linear(32, 16)
    first.register_forward_hook(cooling())
    last.register_forward_pre_hook(Noise())
    last.register_full_backward_hook(Damped())
    model = nn.Sequential(first, nn.ReLU(), last)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    optimizer.register_step_pre_hook(AutoClip())
    return model, optimizer


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(71)
plain, optimizer = build()
model = DistributedDataParallel(plain)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=31))
session = Session(model=model, optimizer=optimizer)
optimizer.register_step_pre_hook(AutoClip())
optimizer.register_step_post_hook(Average())

for step in session.steps(loader, max_steps=100):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
clips = optimizer._optimizer_step_pre_hooks.values()
norms = [sum(each.norms) for each in clips if isinstance(each, AutoClip)]
averages = optimizer._optimizer_step_post_hooks.values()
weights = [each.weight.double().sum() for each in averages if isinstance(each, Average)]
finish(rank, model, norms=norms, weights=weights)
