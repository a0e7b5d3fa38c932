"""All-reduce over TrainMover's links against Gloo, by size, number of ranks and transport.

    python -m benchmarks.collectives --json

The whole stack is timed on both sides (``dist.all_reduce`` on a process group), in alternating
blocks in the same processes. Above 1.0 TrainMover is faster.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.common import run_program, spread
from benchmarks.programs.collectives import REPETITIONS

TRANSPORTS = {"shm": "auto", "tcp": "tcp"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(REPETITIONS))
    parser.add_argument("--transports", nargs="+", default=list(TRANSPORTS), choices=TRANSPORTS)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    rows = []
    for ranks in options.ranks:
        for transport in options.transports:
            settings = ["--sizes", *map(str, options.sizes), "--blocks", str(options.blocks)]
            measured = run_program(
                "collectives",
                *settings,
                ranks=ranks,
                environment={"TRAINMOVER_TRANSPORT": TRANSPORTS[transport]},
            )
            for row in measured:
                ratios = [g / t for g, t in zip(row["gloo"], row["trainmover"], strict=True)]
                rows.append(
                    {
                        "ranks": ranks,
                        "bytes": row["bytes"],
                        "transport": transport,
                        "speed_vs_gloo": spread(ratios, digits=2),
                        "gloo_s": spread(row["gloo"], digits=6),
                        "trainmover_s": spread(row["trainmover"], digits=6),
                    }
                )
                print(rows[-1], file=sys.stderr)
    print(json.dumps({"rows": rows}, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
