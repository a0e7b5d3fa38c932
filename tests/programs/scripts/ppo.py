"""PPO: rollouts between calls, several passes over minibatches, an advantage by hand."""

import torch
import torch.distributed as dist
from helper import finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from trainmover import Session


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, obs):
        hidden = self.body(obs)
        return torch.distributions.Categorical(logits=self.actor(hidden)), self.critic(hidden)[:, 0]


class Env:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.state = torch.randn(4, generator=self.generator)

    def step(self, action):
        reward = -self.state.pow(2).mean() + (action == (self.state.sum() > 0)).float()
        push = torch.randn(4, generator=self.generator) * 0.1
        self.state = (self.state * 0.95 + push + (action - 0.5) * 0.1).clamp(-3, 3)
        return self.state, reward


def rollout(agent, env, length):
    rows = []
    with torch.no_grad():
        for _ in range(length):
            obs = env.state
            dist_, value = agent(obs[None])
            action = dist_.sample()[0]
            _, reward = env.step(action)
            rows.append((obs, action, dist_.log_prob(action)[0], value[0], reward))
        obs, actions, logps, values, rewards = map(torch.stack, zip(*rows))
        returns, running = torch.zeros_like(rewards), agent(env.state[None])[1][0]
        for t in reversed(range(length)):
            running = rewards[t] + 0.95 * running
            returns[t] = running
    return obs, actions, logps, returns, returns - values


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(58)
agent = Agent()
model = DistributedDataParallel(agent)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)
session = Session(model=model, optimizer=optimizer)
env = Env(seed=100 + rank)
torch.manual_seed(59 + rank)
rewards = []

for iteration in range(12):
    batch = session.between_steps(lambda: rollout(agent, env, 32))
    data = torch.utils.data.TensorDataset(*batch)
    for epoch in range(2):
        order = torch.Generator().manual_seed(iteration * 10 + epoch)
        loader = DataLoader(data, batch_size=8, shuffle=True, generator=order)
        for step in session.steps(loader):
            with step as (obs, action, logp, ret, adv):
                policy, value = model(obs)
                ratio = (policy.log_prob(action) - logp).exp()
                gain = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
                loss = -gain + 0.5 * (value - ret).pow(2).mean() - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                session.log(loss=loss)
    rewards.append(round(batch[3].mean().item(), 5))
finish(rank, model, rewards=rewards)
