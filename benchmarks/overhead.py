"""What a step costs under TrainMover, against the same step with plain DDP on Gloo.

    python -m benchmarks.overhead --json

Everything is on: DDP on the trainmover backend, session, capsule, vote, telemetry, agent, services.
Ratios of alternating blocks in the same processes; below 1.0 TrainMover is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def spread(values: list[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {
        "min": round(min(values), 4),
        "median": round(statistics.median(values), 4),
        "max": round(max(values), 4),
    }


def measure(ranks: int, blocks: int, width: int) -> dict[str, object]:
    """One job; its blocks' times."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        run = [sys.executable, "-m", "trainmover.cli", "run", "--nnodes", str(ranks)]
        program = ["-m", "benchmarks.programs.step", "--blocks", str(blocks)]
        program += ["--width", str(width), "--out", str(out)]
        subprocess.run([*run, *program], check=True, stdout=sys.stderr)
        times = json.loads(out.read_text())
    ratios = [a / b for a, b in zip(times["trainmover"], times["gloo"], strict=True)]
    return {
        "ranks": ranks,
        "parameters": times["parameters"],
        "step_ratio": spread(ratios),
        "gloo_step_s": spread(times["gloo"]),
        "trainmover_step_s": spread(times["trainmover"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    result = measure(options.ranks, options.blocks, options.width)
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
