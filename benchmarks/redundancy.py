"""What redundancy by the next slot costs: steps of a fully sharded GPT with and without it.

    python -m benchmarks.redundancy --json [--kind snapshot]

Runs alternate, so that whatever else the host does hits both alike. Owner and follower share the
cores with training here: the copy's optimizer step, which a machine of its own takes beside
training, is in the figure.
"""

from __future__ import annotations

import argparse
import json
import statistics

from benchmarks.common import run_program, spread

WARM_UP = 20
"""Steps at the beginning that are left out: units go over in the first ones."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=["follower", "snapshot"], default="follower")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    settings = ("--width", str(options.width), "--batch", str(options.batch))
    times: dict[str, list[float]] = {"checkpoint": [], options.kind: []}
    parameters = 0
    for _ in range(options.rounds):
        for kind, medians in times.items():
            run = run_program("sharded", *settings, ranks=options.ranks, redundancy=kind)
            medians.append(statistics.median(run["steps"][WARM_UP:]))
            parameters = run["parameters"]
    ratios = [f / c for c, f in zip(times["checkpoint"], times[options.kind], strict=True)]
    result = {
        "ranks": options.ranks,
        "parameters": parameters,
        "step_ratio": spread(ratios),
        **{f"{kind}_step_s": spread(medians) for kind, medians in times.items()},
    }
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
