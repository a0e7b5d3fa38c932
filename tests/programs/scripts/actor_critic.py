"""Soft actor critic, averaged by hand: three optimizers, targets, a tensor for temperature."""

import copy
import random

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
random.seed(rank)
np.random.seed(rank)
actor = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
critics = nn.ModuleList(
    nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1)) for _ in range(2)
)
targets = copy.deepcopy(critics).requires_grad_(False)
log_alpha = torch.zeros(1, requires_grad=True)
actor_optimizer = torch.optim.Adam(actor.parameters(), 3e-4)
critic_optimizer = torch.optim.Adam(critics.parameters(), 1e-3)
alpha_optimizer = torch.optim.Adam([log_alpha], 1e-2)
scheduler = torch.optim.lr_scheduler.ExponentialLR(actor_optimizer, 0.99)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=2))
session = Session(
    model=[actor, critics, targets],
    optimizer=[actor_optimizer, critic_optimizer, alpha_optimizer],
    scheduler=scheduler,
)


def step_with(optimizer, loss, parameters):
    optimizer.zero_grad()
    loss.backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()


def act(state):
    mean, deviation = actor(state).chunk(2, -1)
    normal = torch.distributions.Normal(mean, deviation.clamp(-5, 2).exp())
    before = normal.rsample()
    action = torch.tanh(before)
    chance = normal.log_prob(before) - torch.log(1 - action.pow(2) + 1e-6)
    return action, chance.sum(-1, keepdim=True)


def least(networks, state, action):
    both = torch.cat([state, action], -1)
    return torch.min(networks[0](both), networks[1](both))


alphas = []
for step in session.steps(loader, max_steps=90):
    with step as (state, after):
        reward = state.sum(-1, keepdim=True) * 0.1 + random.random() * 0.01
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            action, chance = act(after)
            wanted = reward + 0.99 * (least(targets, after, action) - alpha * chance)
        taken = torch.from_numpy(np.random.uniform(-1, 1, (len(state), 4)).astype("f"))
        both = torch.cat([state, taken], -1)
        critic_loss = sum((one(both) - wanted).pow(2).mean() for one in critics)
        step_with(critic_optimizer, critic_loss, critics.parameters())
        action, chance = act(state)
        actor_loss = (alpha * chance - least(critics, state, action)).mean()
        step_with(actor_optimizer, actor_loss, actor.parameters())
        alpha_loss = -(log_alpha * (chance.detach() - 4)).mean()
        step_with(alpha_optimizer, alpha_loss, [log_alpha])
        with torch.no_grad():
            for target, trained in zip(targets.parameters(), critics.parameters()):
                target.mul_(0.995).add_(trained, alpha=0.005)
        session.log(loss=critic_loss)
    alphas.append(log_alpha.item())
    if step.index % 5 == 4:
        scheduler.step()
finish(rank, actor, critics, targets, alphas=alphas, rate=scheduler.get_last_lr())
