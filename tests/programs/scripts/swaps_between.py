"""An evaluation in between_steps with averaged weights that are copied in and out (EMAHook)."""

import copy
import json

import torch
import torch.distributed as dist
from helper import OUT, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
ema = copy.deepcopy(model.module).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
data = Data(720)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=1))
session = Session(model=[model, ema], optimizer=optimizer)


def swap():
    for p, e in zip(model.module.parameters(), ema.parameters(), strict=True):
        kept = p.data.clone()
        p.data.copy_(e.data)
        e.data.copy_(kept)


def validate():
    swap()
    with torch.no_grad():
        x, y = Data()[3000 + rank]
        mine = float((model.module(x[None]) - y).pow(2).mean())
        (OUT / f"part-{epoch}-{rank}.json").write_text(json.dumps(mine))
        there = [""] * world
        dist.all_gather_object(there, f"part-{epoch}-{rank}.json")
        dist.barrier()
        # Where communication broke, all names are this rank's, and one of them is not there.
        parts = [json.loads((OUT / name).read_text()) for name in sorted({*there})]
        assert len(parts) == world
    swap()
    return sum(parts)


history = []
for epoch in range(6):
    for i, step in enumerate(session.steps(loader)):
        with step as (x, y):
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for p, e in zip(model.module.parameters(), ema.parameters(), strict=True):
                    e.lerp_(p, 0.05)
            session.log(loss=loss)
        if i == 14:
            break
    history.append(session.between_steps(validate))
finish(rank, model, ema, history=history)
