"""A physics-informed network: Adam first, then L-BFGS that averages in its closure, no wrapper."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
adam = torch.optim.Adam(net.parameters(), 1e-2)
lbfgs = torch.optim.LBFGS(
    net.parameters(), lr=0.5, max_iter=4, history_size=10, line_search_fn="strong_wolfe"
)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=2))
session = Session(model=net, optimizer=[adam, lbfgs])


def residual(batch):
    x = batch[:, :2].clone().requires_grad_()
    u = net(x)
    (gradient,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient[:, 1].sum(), x, create_graph=True)
    burgers = gradient[:, :1] + u * gradient[:, 1:] - 0.1 * second[:, 1:]
    return burgers.pow(2).mean() + (u - x.sum(1, keepdim=True)).pow(2).mean()


def average(value):
    dist.all_reduce(value)
    value /= world
    return value


losses = []
for step in session.steps(loader, max_steps=90):
    with step as (x, _):

        def closure():
            net.zero_grad()
            loss = residual(x)
            loss.backward()
            for parameter in net.parameters():
                average(parameter.grad)
            return average(loss.detach().clone())

        loss = (adam if step.index < 30 else lbfgs).step(closure)
        session.log(loss=loss)
    losses.append(float(loss))
finish(rank, net, losses=losses)
