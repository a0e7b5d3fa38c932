"""What all ranks said is looked at in every step."""

import torch
import torch.distributed as dist
from helper import DEVICE, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(37)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).to(DEVICE)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), seed=25))
session = Session(model=model, optimizer=optimizer)
tokens = 0

hosts = [None] * world
dist.all_gather_object(hosts, f"host-{rank}")
assert hosts == [f"host-{each}" for each in range(world)]

for step in session.steps(loader, max_steps=90):
    with step as (x, y):
        x, y = x.to(DEVICE), y.to(DEVICE)
        counts = [None] * world
        dist.all_gather_object(counts, {"rank": rank, "tokens": int((x > 0).sum())})
        assert [each["rank"] for each in counts] == list(range(world))
        total = sum(each["tokens"] for each in counts)
        optimizer.zero_grad()
        loss = ((model(x) - y).pow(2) * (x > 0)).sum() / total * world
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    tokens += total
finish(rank, model, tokens=tokens)
