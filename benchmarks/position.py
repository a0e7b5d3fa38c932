"""How long training pauses when a machine is replaced, by kind of loader and place in the data.

    python -m benchmarks.position --json

A batch takes 20 ms to load. The job begins at the place, with ``session.steps(start_step=...)``;
then one slot is moved (``planned``) and a machine is killed (``crash``). Bits are those of the loss
of each rank and step, against a run that nobody disturbs. A pause is what the step around it took
beyond the median step, at the rank that waited longest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster

KINDS = [  # loader, workers
    ("distributed", 0),
    ("distributed", 2),
    ("shuffle", 2),
    ("infinite", 0),
    ("stateful", 0),
    ("stateful", 2),
    ("sequence", 0),
    ("iterable", 0),
    ("iterable", 2),
]
PLACES = (10, 1_000, 100_000)
Lines = dict[tuple[int, int], str]


def program(loader: str, workers: int, start: int, *rest: str) -> list[str]:
    command = ["-m", "benchmarks.programs.position", "--loader", loader]
    return [*command, "--workers", str(workers), "--start", str(start), *rest]


async def disturbed(
    loader: str, workers: int, start: int, metrics: Path
) -> list[tuple[str, float | None]]:
    """(kind, pause in seconds) of a planned move and of a crash, in one job."""
    found = []
    async with Cluster(
        nnodes="2:4",
        program=program(loader, workers, start),
        options=("--metrics", str(metrics), "--automation", "paused"),
    ) as cluster:
        for kind, slot in (("planned", 0), ("crash", 1)):
            await cluster.warm(slot=slot)
            if loader == "iterable":
                await cluster.is_there(slot=slot)
            await cluster.steps(20)
            act = cluster.migrate if kind == "planned" else cluster.crash
            move = await act(slot)
            print(loader, workers, start, kind, move.as_data(), file=sys.stderr)
            found.append((kind, move.pause_s))
        await cluster.steps(10)
    return found


def calm(loader: str, workers: int, start: int, steps: int, metrics: Path) -> None:
    """The same job for ``steps`` steps, without disturbance, and without waiting for batches."""
    command = [sys.executable, "-m", "trainmover_console.cli", "run", "--nnodes", "2"]
    command += ["--metrics", str(metrics), *program(loader, workers, start)]
    command += ["--steps", str(steps), "--cost-s", "0"]
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=600)


def losses(metrics: Path) -> Lines:
    """The bits of the loss, by rank and step."""
    found: Lines = {}
    for path in metrics.glob("rank-*.jsonl"):
        rank = int(path.stem.removeprefix("rank-"))
        for line in path.read_text().splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                continue  # the last one of a process that was killed
            found[rank, values["step"]] = values["loss_hex"]
    return found


def measure(loader: str, workers: int, start: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        moved, undisturbed = Path(name) / "moved", Path(name) / "calm"
        pauses = asyncio.run(disturbed(loader, workers, start, moved))
        ours = losses(moved)
        first, last = (pick(step for _, step in ours) for pick in (min, max))
        calm(loader, workers, start, last - first + 1, undisturbed)
        theirs = losses(undisturbed)
    equal = bool(ours) and all(theirs.get(key) == bits for key, bits in ours.items())
    return [
        {
            "loader": loader,
            "workers": workers,
            "batches": start,
            "kind": kind,
            "pause_s": None if pause_s is None else round(pause_s, 4),
            "bits_equal": equal,
        }
        for kind, pause_s in pauses
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = sorted({loader for loader, _ in KINDS})
    parser.add_argument("--loaders", nargs="+", default=names, choices=names)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--batches", type=int, nargs="+", default=list(PLACES))
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    rows = []
    for loader, workers in KINDS:
        if loader in options.loaders and workers in options.workers:
            for start in options.batches:
                rows += measure(loader, workers, start)
                print(rows[-2:], file=sys.stderr)
    print(json.dumps({"rows": rows}, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
