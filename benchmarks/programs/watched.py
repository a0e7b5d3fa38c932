"""A job whose ranks can be made slow from outside, for measurements of detectors.

A step sleeps in small pieces and computes a little, so that ranks which share two processors are as
independent as machines are. What each rank does in the next step is read from ``--control``: its
factor of computing time, seconds for drawing the batch, and whether it hangs in its body.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.proxy import PREFACE
from trainmover import Session
from trainmover_executor.links.dialling import endpoint

CONTROL = struct.Struct("<3d")
PROGRESS = struct.Struct("<q")
_PIECE_S = 0.002
_WORK = 0.1
"""Share of a piece that is work."""


def dial_through(proxy: str) -> None:
    """Let every link go through a proxy, whoever dials it."""
    connect = endpoint._connect

    async def connected(address: str) -> socket.socket:
        sock = await connect(proxy)
        host, _, port = address.rpartition(":")
        preface = PREFACE.pack(int(port), host.encode())
        await asyncio.get_running_loop().sock_sendall(sock, preface)
        return sock

    # Here every link begins, in whatever module ``dial`` is called.
    endpoint._connect = connected


class Rank:
    """One rank's view of the control file."""

    def __init__(self, control: Path, progress: Path, rank: int) -> None:
        self._control = os.open(control, os.O_RDONLY)
        self._progress = os.open(progress, os.O_WRONLY)
        self._rank = rank

    def orders(self) -> tuple[float, float, float]:
        data = os.pread(self._control, CONTROL.size, self._rank * CONTROL.size)
        return CONTROL.unpack(data)  # type: ignore[return-value]

    def passed(self, steps: int) -> None:
        if self._rank == 0:
            os.pwrite(self._progress, PROGRESS.pack(steps), 0)


def spend(seconds: float) -> None:
    """Work for a tenth of the time; pieces are short, so that being stopped costs time."""
    for _ in range(max(1, round(seconds / _PIECE_S))):
        ends = time.perf_counter() + _PIECE_S
        while time.perf_counter() < ends - _PIECE_S * (1 - _WORK):
            pass
        time.sleep(_PIECE_S * (1 - _WORK))  # stands for a device that computes


class Batches:
    """An endless source that takes as long as it is told."""

    def __init__(self, rank: Rank, width: int) -> None:
        self._rank, self._width = rank, width

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(self._rank.orders()[1])  # the slow source itself
            yield torch.ones(2, self._width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--progress", type=Path, required=True)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--step", type=float, default=0.15)
    parser.add_argument("--proxy", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.proxy:
        dial_through(options.proxy)
    Session.init()
    rank = Rank(options.control, options.progress, dist.get_rank())
    torch.manual_seed(0)
    wide = options.width
    model = DistributedDataParallel(nn.Sequential(nn.Linear(wide, wide), nn.Linear(wide, wide)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    session = Session(model=model, optimizer=optimizer)
    for step in session.steps(Batches(rank, wide), max_steps=1 << 40):
        with step as batch:
            factor, _, hangs = rank.orders()
            while hangs and not session.is_shadow:
                time.sleep(0.05)  # the hang itself: the process lives and does nothing
                hangs = rank.orders()[2]
            loss = model(batch).square().mean()
            spend(options.step * factor)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
        if not session.is_shadow and step.committed:
            rank.passed(step.index + 1)


if __name__ == "__main__":
    main()
