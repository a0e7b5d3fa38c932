"""LBFGS with a closure that calls forward and backward."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(29)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=5)
loader = DataLoader(Data(), batch_size=16, sampler=DistributedSampler(Data(), seed=18))
session = Session(model=model, optimizer=optimizer)
calls = 0

for step in session.steps(loader, max_steps=60):
    with step as (x, y):

        def closure():
            global calls
            calls += 1
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        session.log(loss=loss)
finish(rank, model, calls=calls)
