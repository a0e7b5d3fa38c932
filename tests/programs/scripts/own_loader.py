"""A loader class of one's own: shuffles a list of files again and again, counts its passes."""

import random

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session


class Batches:
    """Every pass depends on all passes before it."""

    def __init__(self, data, size):
        self.data, self.size = data, size
        self.files = [f"{index}.npy" for index in range(len(data))]
        self.order = np.arange(len(data))
        self.epoch = self.served = 0

    def __iter__(self):
        random.shuffle(self.files)
        np.random.RandomState(self.epoch).shuffle(self.order)
        self.epoch += 1
        for at in range(rank * self.size, 30 * self.size, world * self.size):
            names = [self.files[index] for index in self.order[at : at + self.size]]
            items = [self.data[int(name.split(".")[0])] for name in names]
            self.served += len(items)
            # A view of what the next pass shuffles where it is.
            yield (*map(torch.stack, zip(*items)), self.order[at : at + self.size])


class Trainer:
    def __init__(self):
        self.loader = Batches(Data(1500), 8)

    def run_step(self, step):
        with step as (x, y, places):
            loss = (model(x) - y).pow(2).mean() * (1 + places.mean() / 3000)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)

    def fit(self):
        for _ in range(8):
            for step in session.steps(self.loader): self.run_step(step)  # fmt: skip  # noqa: E701


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(86)
random.seed(87)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
session = Session(model=model, optimizer=optimizer)
trainer = Trainer()
trainer.fit()
finish(rank, model, epoch=trainer.loader.epoch, served=trainer.loader.served)
