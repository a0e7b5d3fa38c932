"""Statistics by module, as K-FAC keeps them, and an average of gradients by parameter."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Preconditioner:
    """Gradients times the inverse of what a layer was given, and of what came back to it."""

    def __init__(self, model, every=5):
        self.every, self.steps = every, 0
        self.inputs, self.gradients, self.inverses = {}, {}, {}
        self.modules = [each for each in model.modules() if isinstance(each, nn.Linear)]
        for module in self.modules:
            module.register_forward_pre_hook(self.save_input)
            module.register_full_backward_hook(self.save_gradient)

    def save_input(self, module, inputs):
        if torch.is_grad_enabled() and self.steps % self.every == 0:
            self.update(self.inputs, module, inputs[0].detach())

    def save_gradient(self, module, _, gradients):
        if self.steps % self.every == 0:
            self.update(self.gradients, module, gradients[0].detach() * len(gradients[0]))

    @staticmethod
    def update(factors, module, rows):
        factor = rows.T @ rows / len(rows)
        factors[module] = 0.9 * factors[module] + 0.1 * factor if module in factors else factor

    @torch.no_grad()
    def step(self):
        for module in self.modules:
            if self.steps % self.every == 0:
                self.inverses[module] = [
                    torch.linalg.inv(each[module] + 0.1 * torch.eye(len(each[module])))
                    for each in (self.inputs, self.gradients)
                ]
            of_input, of_gradient = self.inverses[module]
            gradient = of_gradient @ module.weight.grad @ of_input
            dist.all_reduce(gradient)
            module.weight.grad.copy_(gradient / dist.get_world_size())
        self.steps += 1


class Slow:
    """Adds a slow average to gradients, which it makes for each parameter when it first comes."""

    def __init__(self):
        self.average = {}

    @torch.no_grad()
    def __call__(self, parameters):
        for parameter in parameters:
            if parameter not in self.average:
                self.average[parameter] = torch.zeros_like(parameter)
            self.average[parameter].mul_(0.98).add_(parameter.grad, alpha=0.02)
            parameter.grad.add_(self.average[parameter], alpha=2.0)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(3)
layers = [nn.Linear(16, 80), nn.Tanh(), nn.Linear(80, 80), nn.Tanh(), nn.Linear(80, 80), nn.Tanh()]
net = nn.Sequential(*layers, nn.Linear(80, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.003)
preconditioner, slow = Preconditioner(net), Slow()
session = Session(model=model, optimizer=optimizer)
data = Data(720)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            preconditioner.step()
            slow(net.parameters())
            optimizer.step()
            session.log(loss=loss)
finish(rank, model, steps=preconditioner.steps)
