"""A stream of examples that are augmented at random: each rank reads its share."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from trainmover import Session


class Stream(IterableDataset):
    def __init__(self, rank, world, *, length, buffer=16):
        self.rank, self.world, self.length, self.buffer = rank, world, length, buffer

    def __iter__(self):
        shuffle = torch.Generator().manual_seed(self.rank)
        examples, held = Data(), []
        for index in range(self.rank, self.length, self.world):
            held.append(examples[index])
            if len(held) == self.buffer:
                at = int(torch.randint(len(held), (), generator=shuffle))
                yield augmented(held.pop(at))
        yield from map(augmented, held)


def augmented(example):
    x, y = example
    return x + 0.1 * torch.randn(x.shape), y


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(38)
layers = [nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(Stream(rank, world, length=1200), batch_size=8)
session = Session(model=model, optimizer=optimizer, loader=loader)
examples = 0

for step in session.steps(epochs=2):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    examples += len(x)
finish(rank, model, examples=examples, epoch=step.epoch)
