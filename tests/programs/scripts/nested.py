"""A few steps of a critic inside of each step of an outer loop."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(14)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)))
critic = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.LeakyReLU(), nn.Linear(24, 1)))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
critic_optimizer = torch.optim.RMSprop(critic.parameters(), 1e-3)
outer = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=7))
few = Data(72)
inner = DataLoader(few, batch_size=8, sampler=DistributedSampler(few, shuffle=False))
session = Session(model=[model, critic], optimizer=[optimizer, critic_optimizer])
rounds, gaps = 0, []

for step in session.steps(outer):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean() - 0.01 * critic(model(x)).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    gap = 0.0
    for inner_step in session.steps(inner):
        with inner_step as (x, y):
            critic_optimizer.zero_grad()
            critic_loss = critic(model(x).detach()).mean() - critic(y).mean()
            critic_loss.backward()
            critic_optimizer.step()
            session.log(loss=critic_loss)
        gap += critic_loss.item()
    gaps.append(gap / 3)
    rounds += 1
    if rounds == 30:
        break
finish(rank, model, critic, rounds=rounds, gaps=gaps)
