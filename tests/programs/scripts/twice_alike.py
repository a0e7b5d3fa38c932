"""A body whose loss is weighed by something: a generator of the program, a clock, the system."""

import json
import random
import sys
import time

import torch
import torch.distributed as dist
from helper import OUT, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(5)
random.seed(7)
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 16))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=2))
session = Session(model=model, optimizer=optimizer)
weigh = {
    "generator": random.random,
    "system": random.SystemRandom().random,
    "clock": time.perf_counter,
    "one rank": random.SystemRandom().random if rank == 1 else random.random,
}[sys.argv[2]]
count = 0

try:
    for step in session.steps(loader, max_steps=20):
        with step as (x, y):
            count += 1
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean() * weigh()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
except Exception as error:
    (OUT / f"error-{rank}.json").write_text(json.dumps([type(error).__name__, str(error)]))
    raise
finish(rank, model, count=count)
