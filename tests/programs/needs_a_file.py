"""A program that wants a file which a standby does not have at first."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Session


class Numbers(Dataset):
    def __len__(self) -> int:
        return 40960

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--file", type=Path, required=True)
options = parser.parse_args()

dist.init_process_group("trainmover")
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = Numbers()
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
session = Session(model=model, optimizer=optimizer, loader=loader)


def augment(batch: torch.Tensor) -> torch.Tensor:
    if session.is_shadow:
        assert options.file.exists(), f"{options.file.name} is missing"
    return batch + 1


for step in session.steps(loader, max_steps=options.steps):
    with step as batch:
        x = augment(batch)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
