"""A WGAN: real images from a generator without end, some critic steps to each of the generator."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(6)


def infinite(loader):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        for x, _ in loader:
            yield x
        epoch += 1


def forever(loader):
    while True:
        yield from loader


critic = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(), nn.Linear(32, 1)))
maker = DistributedDataParallel(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16)))
critic_step = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
maker_step = torch.optim.RMSprop(maker.parameters(), lr=1e-3)
session = Session(model=[critic, maker], optimizer=[critic_step, maker_step])
data = Data(80)
real = infinite(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
noise = forever(DataLoader(torch.randn(44, 4), batch_size=4, shuffle=True))
for step in session.steps(range(90)):
    with step:
        for _ in range(2):
            x = next(real)
            fake = maker(next(noise)).detach()
            loss = critic(fake).mean() - critic(x).mean()
            critic_step.zero_grad()
            loss.backward()
            critic_step.step()
            for parameter in critic.parameters():
                parameter.data.clamp_(-0.05, 0.05)
        maker_step.zero_grad()
        cost = -critic(maker(next(noise))).mean()
        cost.backward()
        maker_step.step()
        session.log(loss=cost)
finish(rank, critic, maker)
