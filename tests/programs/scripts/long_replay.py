"""PyTorch's DQN tutorial: a replay memory of thousands, a deque of named tuples of tensors."""

import math
import random
from collections import deque, namedtuple

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn import functional

from trainmover import Session

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *fields):
        self.memory.append(Transition(*fields))

    def sample(self, size):
        return random.sample(self.memory, size)


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
random.seed(rank)
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
memory = ReplayMemory(2200)
taken = 0
torch.manual_seed(50 + rank)
session = Session(model=[policy, target], optimizer=optimizer)


def select_action(state):
    global taken
    threshold = 0.05 + 0.85 * math.exp(-taken / 500)
    taken += 1
    if random.random() > threshold:
        with torch.no_grad():
            return policy(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]])


state = torch.randn(1, 4)
for step in session.steps(range(90)):
    with step:
        for _ in range(50):
            action = select_action(state)
            seen = 0.95 * state + 0.1 * (action - 0.5) + 0.02 * torch.randn(1, 4)
            reward = -seen.abs().sum().view(1)
            after = None if reward < -4 else seen
            memory.push(state, action, after, reward)
            state = torch.randn(1, 4) if after is None else after
        batch = Transition(*zip(*memory.sample(16), strict=True))
        goes_on = torch.tensor([each is not None for each in batch.next_state])
        values = policy(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
        later = torch.zeros(16)
        with torch.no_grad():
            next_states = torch.cat([each for each in batch.next_state if each is not None])
            later[goes_on] = target(next_states).max(1).values
        expected = later * 0.99 + torch.cat(batch.reward)
        loss = functional.smooth_l1_loss(values, expected.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        for parameter in policy.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), policy.parameters(), strict=True):
                old.lerp_(new, 0.005)
        session.log(loss=loss)
finish(rank, policy, target, held=len(memory.memory), taken=taken)
