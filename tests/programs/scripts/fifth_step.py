"""Weights of the generator move in every fifth step only, the critic's are clipped."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(25)
generator = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)))
critic = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
slow = torch.optim.RMSprop(generator.parameters(), 1e-3)
fast = torch.optim.RMSprop(critic.parameters(), 1e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=14))
session = Session(model=[generator, critic], optimizer=[slow, fast])
updates = 0

for step in session.steps(loader, max_steps=100):
    with step as (real, _):
        z = torch.randn(len(real), 8)
        fast.zero_grad()
        loss = critic(generator(z).detach()).mean() - critic(real).mean()
        loss.backward()
        fast.step()
        for p in critic.parameters():
            p.data.clamp_(-0.05, 0.05)
        if (step.index + 1) % 5 == 0:
            slow.zero_grad()
            generator_loss = -critic(generator(z)).mean()
            generator_loss.backward()
            slow.step()
            updates += 1
        session.log(loss=loss)
finish(rank, generator, critic, updates=updates)
