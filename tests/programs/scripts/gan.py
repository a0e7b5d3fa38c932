"""A generative adversarial network: two models, two optimizers in one body."""

import torch
import torch.distributed as dist
from helper import DEVICE, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.manual_seed(24)
generator = DistributedDataParallel(
    nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)).to(DEVICE)
)
critic = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 1)).to(
        DEVICE
    )
)
generator_optimizer = torch.optim.Adam(generator.parameters(), 2e-3, betas=(0.5, 0.999))
critic_optimizer = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.5, 0.999))
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=13))
session = Session(
    model=[generator, critic], optimizer=[generator_optimizer, critic_optimizer], loader=loader
)
bce = nn.BCEWithLogitsLoss()
wins = 0

for step in session.steps(max_steps=100):
    with step as (real, _):
        real = real.to(DEVICE)
        ones, zeros = (
            torch.ones(len(real), 1, device=DEVICE),
            torch.zeros(len(real), 1, device=DEVICE),
        )
        fake = generator(torch.randn(len(real), 8, device=DEVICE))
        critic_optimizer.zero_grad()
        both = critic(torch.cat([real, fake.detach()]))
        critic_loss = bce(both, torch.cat([ones, zeros]))
        critic_loss.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        loss = bce(critic(fake), ones)
        loss.backward()
        generator_optimizer.step()
        session.log(loss=loss + critic_loss)
    wins += int(loss.item() < critic_loss.item())
finish(rank, generator, critic, wins=wins)
