"""A learning rate finder in front of training, and a scheduler that is made behind it."""

import copy

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(81)
net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
session = Session(model=model, optimizer=optimizer)
sampler = DistributedSampler(Data(720), seed=3)
loader = DataLoader(Data(720), batch_size=8, sampler=sampler)


class Finder:
    """Tries rates that rise, and puts the model and the optimizer back."""

    def __init__(self):
        self.rates, self.losses, self.best = [], [], float("inf")
        self.saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])

    def run(self, steps):
        for i, step in enumerate(session.steps(loader, max_steps=steps)):
            set_rate(1e-5 * 1e4 ** (i / steps))
            with step as batch:
                loss = train(batch)
            self.rates.append(optimizer.param_groups[0]["lr"])
            self.losses.append(loss)
            self.best = min(self.best, loss)

    def suggestion(self):
        losses = torch.tensor(self.losses)
        dist.all_reduce(losses)
        return self.rates[int(losses.argmin())]

    def reset(self):
        model.load_state_dict(self.saved[0])
        optimizer.load_state_dict(self.saved[1])


def set_rate(rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


def train(batch):
    x, y = batch
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    session.log(loss=loss)
    return loss.item()


finder = Finder()
finder.run(10)
rate = session.between_steps(finder.suggestion)
finder.reset()
set_rate(rate)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as batch:
            train(batch)
        scheduler.step()
    if epoch == 1:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
finish(rank, model, rate=rate, losses=finder.losses, best=finder.best, last=scheduler.get_last_lr())
