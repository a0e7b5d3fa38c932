"""Several passes over one batch, each with a step of the same optimizer, as in PPO."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(28)
policy = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)))
optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=17))
session = Session(model=policy, optimizer=optimizer)
rewards, early = [], 0

for step in session.steps(loader, max_steps=80):
    with step as (states, targets):
        with torch.no_grad():
            before = torch.log_softmax(policy(states), 1)
            actions = torch.multinomial(before.exp(), 1)
        reward = targets.gather(1, actions)
        old = before.gather(1, actions)
        for _ in range(3):
            now = torch.log_softmax(policy(states), 1).gather(1, actions)
            ratio = (now - old).exp()
            clipped = torch.minimum(ratio * reward, ratio.clamp(0.8, 1.2) * reward)
            loss = -clipped.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            distance = (old - now.detach()).mean().reshape(1)
            dist.all_reduce(distance)
            if distance.abs().item() > 0.05:
                early += 1
                break
        session.log(loss=loss)
    rewards.append(reward.mean().item())
finish(rank, policy, rewards=rewards, early=early)
