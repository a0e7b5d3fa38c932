"""What a step costs under TrainMover, against the same step with plain DDP on Gloo.

    python -m benchmarks.overhead --json

Everything is on: DDP on the trainmover backend, session, private state, vote, telemetry, agent,
services.
Ratios of alternating blocks in the same processes; below 1.0 TrainMover is faster.
``processor_ratio`` compares the processor time of a rank's process, all threads, in the same way:
where ranks share cores it is less noisy than the time of day.
By default each rank has a core, up to four, and the model is small for what is exchanged, as where
each of many GPUs sees few samples: a GPT of 4.9 M parameters and 32 tokens a rank. The larger the
batch (``--batch``, ``--context``), the less there is to compare: both sides compute alike.
``stayer_peak_ratio`` is the peak resident memory of a stayer over planned moves, phase 1 and 2,
divided by its peak in as many steps without one (10 M parameters, 3 machines): the largest of the
stayers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys

from benchmarks.cluster import Cluster, forget_peak, memory
from benchmarks.common import run_program, spread

PROGRAM = ["-m", "trainmover_executor.programs.gpt", "--steps", "1000000"]
PROGRAM += ["--width", "456", "--batch", "2"]


async def stayer_peaks(*, moves: int, steps: int) -> list[float]:
    """Each stayer's peak memory over some moves by its peak in as many steps without one."""
    async with Cluster(nnodes="3:4", program=PROGRAM) as cluster:
        await cluster.warm(slot=2)
        stayers = [await cluster.worker(slot) for slot in (0, 1)]
        moved: list[list[int]] = []
        still: list[list[int]] = []
        for _ in range(moves):
            await cluster.warm(slot=2)
            _forget(stayers)
            began = cluster.view.step
            await cluster.migrate(2)
            await cluster.steps(steps)
            moved.append(_peaks(stayers))
            _forget(stayers)
            await cluster.steps(cluster.view.step - began)
            still.append(_peaks(stayers))
        print("peaks of the stayers, kB: over moves", moved, "else", still, file=sys.stderr)
        over, without = (map(max, zip(*peaks, strict=True)) for peaks in (moved, still))
        return [a / b for a, b in zip(over, without, strict=True)]


def _forget(pids: list[int]) -> None:
    for pid in pids:
        forget_peak(pid)


def _peaks(pids: list[int]) -> list[int]:
    return [memory(pid)["VmHWM"] for pid in pids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--ranks", type=int, default=max(2, min(4, cores)))
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=1, help="windows of each rank")
    parser.add_argument("--context", type=int, default=32, help="tokens of each window")
    parser.add_argument("--moves", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    chosen = ("blocks", "width", "layers", "batch", "context")
    settings = [f"--{name}={getattr(options, name)}" for name in chosen]
    times = run_program("step", *settings, ranks=options.ranks)
    ratios = [a / b for a, b in zip(times["trainmover"], times["gloo"], strict=True)]
    work = times["processor"]
    busy = [a / b for a, b in zip(work["trainmover"], work["gloo"], strict=True)]
    peaks = asyncio.run(stayer_peaks(moves=options.moves, steps=15))
    result = {
        "ranks": options.ranks,
        "parameters": times["parameters"],
        "step_ratio": spread(ratios),
        "processor_ratio": spread(busy),
        "stayer_peak_ratio": round(max(peaks), 4),
        "gloo_step_s": spread(times["gloo"]),
        "trainmover_step_s": spread(times["trainmover"]),
    }
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
