"""Training on machines of which some are slower than others, by a share that is told.

A step sleeps, in place of a device that computes: ranks that share two processors are then as
independent as machines are. How long it sleeps changes no bit.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainmover import Session


def factor(folder: Path) -> float:
    """How many times as long this machine computes: what its file says, 1.0 where it has none."""
    file = folder / os.environ["TRAINMOVER_MACHINE"]
    return float(file.read_text()) if file.exists() else 1.0


class Batches:
    """An endless source that draws from a generator of its own."""

    def __init__(self, rank: int, width: int) -> None:
        self._generator = torch.Generator().manual_seed(rank)
        self._width = width

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(8, self._width, generator=self._generator)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._generator.set_state(state["generator"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.15, help="what a step sleeps")
    parser.add_argument("--slow", type=Path, required=True, help="folder: a file for each slow one")
    parser.add_argument("--width", type=int, default=64, help="two layers of its square")
    options = parser.parse_args()
    torch.set_num_threads(1)
    Session.init()
    rank = dist.get_rank()
    torch.manual_seed(0)
    wide = options.width
    layers = (nn.Linear(wide, wide), nn.ReLU(), nn.Dropout(0.1), nn.Linear(wide, wide))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    torch.manual_seed(1_000 + rank)  # dropout differs by rank
    session = Session(model=model, optimizer=optimizer)
    for step in session.steps(Batches(rank, wide), max_steps=options.steps):
        with step as batch:
            if not session.is_shadow:
                time.sleep(options.step_s * factor(options.slow))  # the slow machine itself
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)


if __name__ == "__main__":
    main()
