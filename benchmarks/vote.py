"""What the session adds to every step, for the vote, and to an average of a metric behind it.

    python -m benchmarks.vote --json
    python -m benchmarks.vote --json --ranks 2 --batch 64 --ahead-mib 2

Measured behind a barrier, so that waiting for the slowest rank's gradients is not counted. With
``--ahead-mib`` each rank draws so much data ahead in its bodies, which goes to neighbours with the
votes; ``private_state_bytes`` says whether it did: in short steps it is too much.
"""

from __future__ import annotations

import argparse
import json
import statistics

from benchmarks.common import run_program, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--ahead-mib", type=float, default=0)
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    about = [f"--steps={options.steps}", f"--batch={options.batch}"]
    times = run_program("vote", *about, f"--ahead-mib={options.ahead_mib}", ranks=options.ranks)
    result = {
        "ranks": options.ranks,
        "private_state_bytes": times["private_state_bytes"],
        "vote_ms": spread([1000 * value for value in times["added_s"]], digits=3),
        "all_reduce_bare_ms": spread([1000 * value for value in times["bare_s"]], digits=3),
        "all_reduce_between_steps_ms": spread(
            [1000 * value for value in times["again_s"]], digits=3
        ),
        "step_ms": spread([1000 * value for value in times["steps_s"]], digits=1),
        "share_of_step": round(
            statistics.median(times["added_s"]) / statistics.median(times["steps_s"]), 4
        ),
    }
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
