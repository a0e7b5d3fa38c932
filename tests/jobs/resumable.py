"""A script that saves a checkpoint when it is asked to, and starts again from one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session

WIDTH = 16


def batches(first: int, hold_at: int, gate: Path | None) -> Iterator[torch.Tensor]:
    """Batch ``index`` is the same in every run; so are the random numbers of its step."""
    index = first
    while True:
        if index == hold_at and gate is not None:
            print("holds at", index, flush=True)
            while not gate.exists():
                time.sleep(0.01)
        torch.manual_seed(1000 * index + dist.get_rank())
        yield torch.randn(8, WIDTH)
        index += 1


def main() -> None:
    """Train; the last line is the digest of the final state."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--hold-at", type=int, default=-1)
    parser.add_argument("--gate", type=Path)
    options = parser.parse_args()

    Session.init()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.Dropout(0.1))
    model = DistributedDataParallel(net.append(nn.Linear(32, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    first = 0

    def save(steps: int) -> Path:
        path: Path = options.folder / f"rank{dist.get_rank()}.pt"
        known = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**known, "step": first + steps}, path)
        return path

    if options.resume:
        newest = max(
            (torch.load(path) for path in options.folder.glob("rank*.pt")),
            key=lambda saved: int(saved["step"]),
        )
        model.load_state_dict(newest["model"])
        optimizer.load_state_dict(newest["optimizer"])
        first = newest["step"]

    session = Session(model=model, optimizer=optimizer, checkpoint=save)
    loader = batches(first, options.hold_at, options.gate)
    for step in session.steps(loader, max_steps=options.steps - first):
        with step as batch:
            # What a loader draws is apart from what the step draws: each seeds its own.
            torch.manual_seed(1000 * (first + step.index) + dist.get_rank())
            optimizer.zero_grad()
            (model(batch) - batch).pow(2).mean().backward()
            optimizer.step()
    if not session.is_shadow and dist.get_rank() == 0:
        print("resumed at", first, "final", session.digest(), flush=True)


if __name__ == "__main__":
    main()
