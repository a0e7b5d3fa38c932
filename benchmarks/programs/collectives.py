"""Times all-reduce on Gloo and on TrainMover's links in alternating blocks, whole stack each."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.programs.gloo import gloo_group
from trainmover import Session

REPETITIONS = {4 << 10: 50, 1 << 20: 12, 25 << 20: 2, 100 << 20: 1}


def timed(tensor: torch.Tensor, group: dist.ProcessGroup, *, count: int) -> float:
    """Seconds one all-reduce takes, over ``count`` of them."""
    dist.barrier()
    started = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - started) / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=list(REPETITIONS))
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Session.init()
    gloo, ours = gloo_group(), dist.group.WORLD
    pattern = torch.arange(options.sizes[0] // 4).remainder(1000).float()
    total = pattern * (dist.get_rank() + 1)
    dist.all_reduce(total)
    assert torch.equal(total, pattern * sum(range(1, dist.get_world_size() + 1)))
    rows = []
    for size in options.sizes:
        tensor = torch.zeros(size // 4)
        count = REPETITIONS.get(size, 3)
        times: dict[str, list[float]] = {"gloo": [], "trainmover": []}
        for block in range(options.blocks + 1):
            for name, group in (("gloo", gloo), ("trainmover", ours)):
                seconds = timed(tensor, group, count=count)
                if block:  # the first one warms up
                    times[name].append(seconds)
        rows.append({"bytes": size, **times})
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
