"""Times steps of a fully sharded model under TrainMover, whatever its redundancy."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from trainmover import Session
from trainmover_executor.programs.gpt import VOCABULARY, Gpt, SourceText


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Session.init()
    model = Gpt(width=options.width, layers=4, heads=4, context=64, dropout=0.0)
    parameters = sum(p.numel() for p in model.parameters())
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = SourceText(rank=dist.get_rank(), batch=options.batch, context=64, seed=0)
    session = Session(model=model, optimizer=optimizer)
    ends = []
    for step in session.steps(data, max_steps=options.steps):
        with step as (tokens, targets):
            loss = functional.cross_entropy(model(tokens).view(-1, VOCABULARY), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ends.append(time.perf_counter())
    if dist.get_rank() == 0:
        steps = [after - before for before, after in itertools.pairwise(ends)]
        options.out.write_text(json.dumps({"parameters": parameters, "steps": steps}))


if __name__ == "__main__":
    main()
