"""A loader that counts its passes in a slot and in its class; each pass depends on both."""

import numpy as np
import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session


class Batches:
    __slots__ = ("data", "epoch")
    passes = 0

    def __init__(self, data):
        self.data, self.epoch = data, 0

    def __iter__(self):
        order = np.random.RandomState(100 * self.epoch + Batches.passes).permutation(len(self.data))
        self.epoch += 1
        Batches.passes += 3
        for at in range(rank * 8, 30 * 8, world * 8):
            items = [self.data[index] for index in order[at : at + 8].tolist()]
            yield tuple(map(torch.stack, zip(*items)))


dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(93)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
session = Session(model=model, optimizer=optimizer)
batches = Batches(Data(1500))
for _ in range(8):
    for step in session.steps(batches):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
finish(rank, model, epoch=batches.epoch, passes=Batches.passes)
