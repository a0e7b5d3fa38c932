"""What a step costs under TrainMover, against the same step with plain DDP on Gloo.

    python -m benchmarks.overhead --json

Everything is on: DDP on the trainmover backend, session, capsule, vote, telemetry, agent, services.
Ratios of alternating blocks in the same processes; below 1.0 TrainMover is faster.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.common import run_program, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    settings = ("--blocks", str(options.blocks), "--width", str(options.width))
    times = run_program("step", *settings, ranks=options.ranks)
    ratios = [a / b for a, b in zip(times["trainmover"], times["gloo"], strict=True)]
    result = {
        "ranks": options.ranks,
        "parameters": times["parameters"],
        "step_ratio": spread(ratios),
        "gloo_step_s": spread(times["gloo"]),
        "trainmover_step_s": spread(times["trainmover"]),
    }
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
