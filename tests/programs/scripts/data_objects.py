"""A data set whose objects and functions the loop replaces and changes: mosaic off, flips on."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from trainmover import Session


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x * self.by


class Shift(Scale):
    def __call__(self, x):
        return x + self.by


def kept(x):
    return x


def flipped(x):
    return x.flip(0)


class Augmented(Data):
    def __init__(self, length):
        super().__init__(length)
        self.replaced, self.changed, self.listed = Scale(1.0), Scale(1.0), [Scale(1.0), Shift(0.1)]
        self.function, self.mode = kept, "easy"

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        for each in (self.replaced, self.changed, self.function, *self.listed):
            x = each(x)
        return (x if self.mode == "easy" else x.sin()), y


class Scaled:
    """Makes batches; each is a bit larger than the one before."""

    def __init__(self):
        self.by = 1.0

    def __call__(self, items):
        self.by *= 1.01
        xs, ys = zip(*items, strict=True)
        return torch.stack(xs) * self.by, torch.stack(ys)


dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(72)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
loader = DataLoader(
    Subset(Augmented(1000), range(960)),
    batch_size=8,
    sampler=DistributedSampler(range(960), seed=5),
    collate_fn=Scaled(),
)
session = Session(model=model, optimizer=optimizer)

for step in session.steps(loader, epochs=3, max_steps=90):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    data = loader.dataset.dataset
    if step.index == 6:
        data.replaced, data.function, data.mode = Shift(0.5), flipped, "hard"
        del data.listed[0]
    if step.index % 5 == 0:
        data.changed.by *= 0.9
        data.listed[-1].by += 0.1
by = [each.by for each in (data.replaced, data.changed, *data.listed, loader.collate_fn)]
finish(rank, model, by=by, function=data.function.__name__, mode=data.mode)
