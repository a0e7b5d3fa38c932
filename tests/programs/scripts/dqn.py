"""Deep Q-learning: an environment, a replay memory and epsilon at each rank, a target network."""

import collections
import copy
import math
import random

import numpy as np
import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

Transition = collections.namedtuple("Transition", ("state", "action", "reward", "next_state"))


class CartPole:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.state = None
        self.steps = 0

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, size=4).astype(np.float32)
        self.steps = 0
        return self.state.copy()

    def step(self, action):
        force = 1.0 if action == 1 else -1.0
        x, v, angle, spin = self.state
        v = v + 0.02 * force
        spin = spin - 0.03 * force + 0.05 * math.sin(angle)
        self.state = np.array([x + 0.02 * v, v, angle + 0.02 * spin, spin], dtype=np.float32)
        self.steps += 1
        done = bool(abs(self.state[2]) > 0.2 or self.steps >= 25)
        return self.state.copy(), 1.0, done


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = collections.deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(79)
random.seed(79 + rank)
policy = DistributedDataParallel(DQN())
target = copy.deepcopy(policy.module)
target.requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, amsgrad=True)
memory = ReplayMemory(200)
env = CartPole(seed=rank)
steps_done = 0
episode_durations = []
session = Session(model=[policy, target], optimizer=optimizer)


def select_action(state):
    global steps_done
    eps_threshold = 0.05 + 0.85 * math.exp(-1.0 * steps_done / 30)
    steps_done += 1
    if random.random() > eps_threshold:
        with torch.no_grad():
            return policy.module(torch.from_numpy(state)).argmax().item()
    return random.randrange(2)


state = env.reset()
for step in session.steps(range(90)):
    for _ in range(4):
        action = select_action(state)
        next_state, reward, done = env.step(action)
        memory.push(state, action, reward, None if done else next_state)
        state = next_state
        if done:
            episode_durations.append(env.steps)
            state = env.reset()
    with step:
        if len(memory) < 16:
            batch = list(memory.memory)
        else:
            batch = memory.sample(16)
        batch = Transition(*zip(*batch))
        mask = torch.tensor([s is not None for s in batch.next_state])
        states = torch.from_numpy(np.stack(batch.state))
        actions = torch.tensor(batch.action).unsqueeze(1)
        rewards = torch.tensor(batch.reward)
        values = torch.zeros(len(mask))
        if mask.any():
            following = np.stack([s for s in batch.next_state if s is not None])
            with torch.no_grad():
                values[mask] = target(torch.from_numpy(following)).max(1).values
        expected = values * 0.99 + rewards
        loss = nn.functional.smooth_l1_loss(policy(states).gather(1, actions).squeeze(1), expected)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        session.log(loss=loss)
    with torch.no_grad():
        for ours, theirs in zip(target.parameters(), policy.module.parameters()):
            ours.mul_(0.99).add_(theirs, alpha=0.01)
finish(rank, policy, target, steps=steps_done, durations=episode_durations, state=state.tolist())
