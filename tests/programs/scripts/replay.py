"""Q-learning from a replay memory: an environment, exploration, a target network every so often."""

import collections
import random

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session


class Walk:
    """Go left or right on a line; the right end pays."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.at = 4

    def reset(self):
        self.at = self.chance.randrange(1, 8)
        return self.at

    def step(self, action):
        slip = self.chance.random() < 0.1
        self.at += 1 if (action == 1) != slip else -1
        done = self.at in (0, 9)
        return self.at, float(self.at == 9), done


class Agent:
    def __init__(self, rank):
        self.rank = rank
        self.online = DistributedDataParallel(self.network())
        self.target = self.network()
        self.target.load_state_dict(self.online.module.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), 5e-3)
        self.memory = collections.deque(maxlen=64)
        self.environment = Walk(rank)
        self.state = self.environment.reset()
        self.epsilon = 1.0
        self.returns = []

    @staticmethod
    def network():
        return nn.Sequential(nn.Embedding(10, 8), nn.ReLU(), nn.Linear(8, 2))

    def act(self):
        if random.random() < self.epsilon:
            return random.randrange(2)
        with torch.no_grad():
            return int(self.online.module(torch.tensor([self.state])).argmax())

    def play(self, moves):
        for _ in range(moves):
            action = self.act()
            state, reward, done = self.environment.step(action)
            self.memory.append((self.state, action, reward, state, done))
            self.state = self.environment.reset() if done else state
            if done:
                self.returns.append(reward)
        self.epsilon = max(0.1, self.epsilon * 0.98)

    def loss(self):
        state, action, reward, after, done = zip(*random.choices(self.memory, k=8), strict=True)
        chosen = self.online(torch.tensor(state)).gather(1, torch.tensor(action)[:, None])[:, 0]
        with torch.no_grad():
            best = self.target(torch.tensor(after)).max(1).values * ~torch.tensor(done)
        return nn.functional.smooth_l1_loss(chosen, torch.tensor(reward) + 0.9 * best)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(63)
random.seed(500 + rank)
agent = Agent(rank)
session = Session(model=[agent.online, agent.target], optimizer=agent.optimizer)

for step in session.steps(range(90)):
    with step:
        agent.play(4)
        loss = agent.loss()
        agent.optimizer.zero_grad()
        loss.backward()
        agent.optimizer.step()
        session.log(loss=loss)
    if step.index % 10 == 9:
        agent.target.load_state_dict(agent.online.module.state_dict())
finish(rank, agent.online, returns=agent.returns, epsilon=agent.epsilon, memory=len(agent.memory))
