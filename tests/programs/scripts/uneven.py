"""Ranks have different numbers of batches."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(78)
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=3e-3)
data = Data(80 + 8 * rank)
loader = DataLoader(data, batch_size=8)
session = Session(model=model, optimizer=optimizer)
for step in session.steps(loader):
    with step as (x, y):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
finish(rank, model)
