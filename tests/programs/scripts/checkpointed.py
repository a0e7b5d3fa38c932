"""Activations computed again in backward, with dropout; weight norm; a static graph."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = parametrizations.weight_norm(nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(torch.relu(self.inner(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))
        self.head = nn.Linear(16, 16)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def run():
    dist.init_process_group("trainmover")
    torch.manual_seed(42)
    model = DistributedDataParallel(Net(), static_graph=True)
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=90)
    data = Data(360)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step in session.steps(loader):
            with step as (x, y):
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                session.log(loss=loss)
    finish(dist.get_rank(), model, lr=scheduler.get_last_lr())


if __name__ == "__main__":
    run()
