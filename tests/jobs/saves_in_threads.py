"""Saves in threads of its own behind every step, as programs do that want to train meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

folder = Path(sys.argv[1])


def save(step: int) -> None:
    with (folder / f"{os.getpid()}-{step}.pt").open("w") as file:
        file.write("half ")
        file.flush()
        time.sleep(1.0)  # a large file, a slow disk
        file.write("whole")


def save_late(*_):
    """As programs do whose machines are taken away with a notice."""
    save(-1)


signal.signal(signal.SIGTERM, save_late)

dist.init_process_group("trainmover")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
session = Session(model=model, optimizer=optimizer)
for step in session.steps([torch.ones(2, 4)] * 2000):
    with step as x:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    if not session.is_shadow and step.index % 10 == 0:
        threading.Thread(target=save, args=(step.index,)).start()
    time.sleep(0.01)
