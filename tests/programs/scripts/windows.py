"""Windows of recent numbers by name, and counts in a dictionary of dictionaries."""

import collections

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(80)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
data = Data(720)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=80))
session = Session(model=model, optimizer=optimizer)
windows = {name: collections.deque(maxlen=6) for name in ("loss", "norm")}
counts = collections.defaultdict(lambda: collections.defaultdict(int))
limit = 1.0

for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for step in session.steps(loader):
        with step as (x, y):
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            session.log(loss=loss)
        windows["loss"].append(loss.item())
        windows["norm"].append(norm.item())
        counts[f"epoch {epoch}"]["clipped" if norm > limit else "whole"] += 1
        limit = 1.1 * sum(windows["norm"]) / len(windows["norm"])
finish(
    rank,
    model,
    limit=limit,
    loss=list(windows["loss"]),
    counts={k: dict(v) for k, v in counts.items()},
)
