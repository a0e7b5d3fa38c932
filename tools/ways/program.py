"""Trains a little, and leaves which files ran in each step."""

import json
import sys
from pathlib import Path

import recorder
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(1)
model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
session = Session(model=model, optimizer=optimizer)
bucket, gradient, steps = torch.ones(1_000_000), [], {}

for step in session.steps(range(60)):
    with step:
        if step.index == 5:
            before = recorder.take()
            dist.all_reduce(bucket)
            gradient = recorder.take(without="tm-control")
        optimizer.zero_grad()
        loss = model(torch.ones(4, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    steps[step.index] = recorder.take()
left = {"gradient": gradient, "steps": steps, "models": "", "loss": float(loss)}
(Path(sys.argv[1]) / f"result-{rank}.json").write_text(json.dumps(left))
