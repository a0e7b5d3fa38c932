"""The same under TrainMover: no checkpoint is read."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import Batches, Model, optimizer_of, say

from trainmover import Session

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = Model()
optimizer = optimizer_of(model)
ddp = DistributedDataParallel(model)
batches = Batches(rank)
session = Session(model=ddp, optimizer=optimizer)
for step in session.steps(batches):
    with step as (x, y):
        loss = ddp(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not session.is_shadow:
        say(rank, step.index + 1, world)
