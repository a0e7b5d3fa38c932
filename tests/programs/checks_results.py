"""A program that looks at what its collectives return, in every step, and stops where it is odd."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainmover import Session

BATCH = 8


class Numbers(Dataset):
    """Data that is still being written: what comes later waits for its file."""

    def __init__(self, later: Path, first: int) -> None:
        self.later, self.first = later, first

    def __len__(self) -> int:
        return 40960

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        while index >= self.first and not self.later.exists():
            time.sleep(0.01)
        numbers = torch.randn(32, generator=torch.Generator().manual_seed(index))
        return numbers, numbers.roll(1)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--later", type=Path, required=True)
options = parser.parse_args()

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(2)
pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
mine = pairs[rank // 2]

names = [f"run-{rank}" if rank == 0 else None]
dist.broadcast_object_list(names)
assert names == ["run-0"]

model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
data = Numbers(options.later, first=20 * BATCH * world)
loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, shuffle=False))
session = Session(model=model, optimizer=optimizer, loader=loader)

for step in session.steps(loader, max_steps=options.steps):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()

        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == world
        partners = torch.full((1,), float(rank))
        dist.all_reduce(partners, group=mine)
        assert partners.item() == sum(dist.get_process_group_ranks(mine))
        seen = [None] * world
        dist.all_gather_object(seen, {"rank": rank, "step": step.index, "x": x[0].tolist()})
        assert [one["rank"] for one in seen] == list(range(world))
        assert {one["step"] for one in seen} == {step.index}, "the ranks are out of step"

        session.log(loss=float(loss))
        optimizer.step()
    if rank == 2 and step.index == 0:
        torch.save(model.state_dict(), options.later.with_suffix(".pt"))
