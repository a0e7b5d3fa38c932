"""Only so many steps of a longer run, by islice."""

from itertools import islice

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(21)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=10))
session = Session(model=model, optimizer=optimizer)
seen = 0
for i, step in enumerate(islice(session.steps(loader), 90)):
    with step as (x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    seen += len(x)
finish(rank, model, seen=seen, i=i)
