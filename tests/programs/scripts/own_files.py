"""Writes files of its own: a csv of every step, a log through logging, a line for each epoch."""

import csv
import json
import logging
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from helper import OUT, Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

BUFFERED = int(sys.argv[2]) if len(sys.argv) > 2 else 1  # lines
dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(41)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
sampler = DistributedSampler(Data(480), seed=6)
loader = DataLoader(Data(480), batch_size=8, sampler=sampler)
session = Session(model=model, optimizer=optimizer)

home = OUT / f"files-{rank}"
home.mkdir(exist_ok=True)
vocabulary = home / "vocabulary.json"
vocabulary.write_text(json.dumps({"a": 1, "rank": rank}))
words = json.loads(vocabulary.read_text())
table = open(home / "steps.csv", "w", newline="", buffering=BUFFERED)
rows = csv.writer(table)
rows.writerow(["step", "loss"])
log = logging.getLogger("mine")
log.setLevel("INFO")
log.propagate = False
log.addHandler(logging.FileHandler(home / "train.log", mode="a"))
log.info("begin with %s words", len(words))

for epoch in range(4):
    sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = nn.functional.l1_loss(model(x), y)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        rows.writerow([step.index, loss.item().hex()])
        log.info("step %s", step.index)
    with Path(home / "epochs.txt").open("a") as file:
        file.write(f"{epoch} {loss.item().hex()}\n")
table.flush()
written = {path.name: path.read_text() for path in sorted(home.iterdir())}
finish(rank, model, **written)
