"""Plain DDP on Gloo with a checkpoint file: what torchrun starts again."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workload import EVERY, Batches, Model, load, optimizer_of, save, say

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = Model()
optimizer = optimizer_of(model)
first = load(model, optimizer)
ddp = DistributedDataParallel(model)
batches = Batches(rank)
for step in range(first, len(batches)):
    x, y = batches[step]
    loss = ddp(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say(rank, step + 1, world)
    if rank == 0 and (step + 1) % EVERY == 0:
        save(model, optimizer, step + 1)
