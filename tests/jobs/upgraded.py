"""A program that uses only what is public, so that machines of any release can run it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover_executor import Session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--hold", action="append", default=[], help="STEP=FILE that lets it go on")
    options = parser.parse_args()
    gates = {
        int(step): Path(file) for step, _, file in (one.partition("=") for one in options.hold)
    }
    torch.set_num_threads(1)
    Session.init()
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    session = Session(model=model, optimizer=optimizer)
    batches = [torch.randn(8, 16) for _ in range(options.steps)]
    for step in session.steps(batches):
        with step as batch:
            gate = None if session.is_shadow else gates.get(step.index)
            while gate is not None and not gate.exists():
                time.sleep(0.005)  # the test makes the file: there is nobody to wait for
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)


if __name__ == "__main__":
    main()
