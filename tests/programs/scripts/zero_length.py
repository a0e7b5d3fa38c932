"""A curriculum: buckets of examples by length, some of which are empty."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(15)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
session = Session(model=model, optimizer=optimizer)
order = []


def loader_of(size, seed):
    if size == 0:
        return []
    data = Data(size)
    return DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=seed))


buckets = [0, 240, 0, 0, 480, 240, 0, 960, 480, 0]
for number, size in enumerate(buckets):
    seen = 0
    for step in session.steps(loader_of(size, number), max_steps=95):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        seen += len(x)
    order.append((number, seen))
finish(rank, model, order=order)
