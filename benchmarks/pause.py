"""How long training pauses when a machine is replaced, by size of the model.

    python -m benchmarks.pause --json

``planned``: state is followed while training runs. ``planned_direct``: it is copied at the switch.
``crash``: every process of a machine is killed. ``planned_cold`` and ``crash_cold``: the same for a
slot that the standby does not keep warm (``--warm-limit 1``). ``torchrun_restart``: the same job
with plain DDP on Gloo under torchrun, one worker killed, until it is past the step it had reached
(a checkpoint every 5 steps). A pause is what the step around it took beyond the median step.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cluster import Cluster
from benchmarks.common import spread

SHAPES = {  # millions of parameters: width, layers, batch, context
    1: (144, 4, 4, 64),
    10: (456, 4, 2, 64),
    100: (1024, 8, 1, 32),
}


def options_of(shape: tuple[int, int, int, int]) -> list[str]:
    names = ("--width", "--layers", "--batch", "--context")
    return [text for name, value in zip(names, shape, strict=True) for text in (name, str(value))]


async def moves(shape: tuple[int, int, int, int], *, kind: str, count: int) -> list:
    machines = 3 if not kind.startswith("crash") else 2 + count
    cold = kind.endswith("_cold")
    frugal = ("--warm-limit", "1") if cold else ()
    program = ["-m", "trainmover_executor.programs.gpt", "--steps", "1000000", *options_of(shape)]
    environment = {"TRAINMOVER_FOLLOW": "off"} if kind == "planned_direct" else {}
    found = []
    async with Cluster(
        nnodes=f"2:{machines}", program=program, environment=environment, options=frugal
    ) as cluster:
        for index in range(count):
            slot = 1 if cold else index % 2
            await cluster.warm(slot=0 if cold else slot)
            await cluster.steps(12)
            act = cluster.crash if kind.startswith("crash") else cluster.migrate
            found.append(await act(slot))
            print(kind, found[-1].as_data(), file=sys.stderr)
    return found


def restart(shape: tuple[int, int, int, int]) -> tuple[float, int]:
    """(seconds lost beyond a step, steps redone) by one restart under torchrun."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "--max-restarts", "3"]
        command += ["-m", "benchmarks.programs.restart", "--steps", "1000000"]
        process = subprocess.Popen(
            [*command, "--folder", name, *options_of(shape)],
            # Else workers of torch 2.13 that are started again may find the addresses of those
            # before them, and time out: the store is kept, and github.com/pytorch/pytorch/issues/
            # 135712 has removed what told attempts apart.
            env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        too_long = threading.Timer(900, process.kill)
        too_long.start()
        try:
            steps = steps_of(process)
            before = list(itertools.islice(steps, 13))
            os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)
            killed, redone = time.time(), 0
            for step, at in steps:
                if at <= killed + 0.5:  # of the life that ends
                    before.append((step, at))
                elif step <= before[-1][0]:
                    redone += 1
                else:
                    gaps = [b[1] - a[1] for a, b in itertools.pairwise(before)]
                    return at - before[-1][1] - statistics.median(gaps), redone
            raise RuntimeError("torchrun did not bring the job back")
        finally:
            too_long.cancel()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def steps_of(process: subprocess.Popen[str]) -> Iterator[tuple[int, float]]:
    """(step, time) of each step, as the job under torchrun makes it."""
    assert process.stdout is not None
    for line in process.stdout:
        match line.split():
            case ["step", step, at]:
                yield int(step), float(at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=int, nargs="+", default=list(SHAPES), choices=SHAPES)
    kinds = ["planned", "planned_direct", "crash", "torchrun_restart"]
    cold = ["planned_cold", "crash_cold"]
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=[*kinds, *cold])
    parser.add_argument("--count", type=int, default=5, help="measurements of each kind")
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    runs = []
    for millions in options.millions:
        for kind in options.kinds:
            if kind == "torchrun_restart":
                measured = [restart(SHAPES[millions]) for _ in range(2)]
                pauses, redone = [m[0] for m in measured], [m[1] for m in measured]
                extra = {}
            else:
                most = {"crash": 2, "crash_cold": 1}
                count = min(options.count, most.get(kind, options.count))
                found = asyncio.run(moves(SHAPES[millions], kind=kind, count=count))
                pauses = [move.pause_s or 0.0 for move in found]
                redone = [max(move.steps_redone.values(), default=0) for move in found]
                extra = {"preparing_s": spread([m.spans_s().get("preparing", 0.0) for m in found])}
            runs.append(
                {
                    "params": millions * 1_000_000,
                    "kind": kind,
                    "pause_s": spread(pauses),
                    "steps_redone": max(redone),
                    **extra,
                }
            )
            print(runs[-1], file=sys.stderr)
    print(json.dumps({"ranks": 2, "runs": runs}, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
