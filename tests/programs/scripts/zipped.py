"""Labelled and unlabelled data, drawn from two loaders at once."""

import torch
import torch.distributed as dist
from helper import Data, finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trainmover import Session

dist.init_process_group("trainmover")
rank = dist.get_rank()
torch.manual_seed(26)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
session = Session(model=model, optimizer=optimizer)
one, other = Data(300), Data(400)
first = DataLoader(one, batch_size=4, sampler=DistributedSampler(one, seed=3))
second = DataLoader(other, batch_size=4, shuffle=True)
pairs = zip(first, second)
passes = 0
for step in session.steps(range(90)):
    with step:
        try:
            (x, y), (u, _) = next(pairs)
        except StopIteration:
            passes += 1
            first.sampler.set_epoch(passes)
            pairs = zip(first, second)
            (x, y), (u, _) = next(pairs)
        out = model(torch.cat([x, u]))
        loss = nn.functional.mse_loss(out[: len(x)], y) + 0.1 * out[len(x) :].abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
    if step.index % 20 == 19:

        def evaluate():
            with torch.no_grad():
                return sum(float((model(x) - y).square().mean()) for x, y in iter(second))

        score = session.between_steps(evaluate)
finish(rank, model, passes=passes, score=score)
