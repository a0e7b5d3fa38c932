"""``python -m tests.chaos``: many real runs with one fault each, and a table of how they ended."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.chaos.faults import EVERY, draw
from tests.chaos.run import Outcome, perform, undisturbed

from trainmover.tracing import observe


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a Markdown table, alike ones together."""
    rows = Counter(
        (
            one.injection.scene,
            f"{one.injection.role} at `{one.injection.point}`",
            f"{one.injection.fault} {one.injection.victim}",
            one.problem.splitlines()[0] if one.problem else ", ".join(one.ended) or "undisturbed",
        )
        for one in outcomes
    )
    lines = ["| scene | while | fault | migrations ended |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in sorted(rows)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=len(EVERY))
    parser.add_argument("--skip", type=int, default=0, help="go on after so many of them")
    parser.add_argument("--seed", type=int, default=None, help="made up and printed when omitted")
    parser.add_argument("--only", default="", help="injections whose words contain this")
    parser.add_argument("--keep", type=Path, help="folder for the logs of runs that did not hold")
    parser.add_argument("--table", type=Path, help="write a Markdown table of the outcomes")
    options = parser.parse_args()
    observe.configure(service="chaos", level="error")
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    chosen = [one for one in draw(seed, max(options.runs, len(EVERY))) if options.only in str(one)]
    chosen = chosen[options.skip : options.skip + options.runs]
    print(f"seed {seed}: {len(chosen)} of {len(EVERY)} injections", flush=True)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="tm-chaos-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        expected = undisturbed(folder / "undisturbed")
        for number, one in enumerate(chosen, options.skip):
            outcome = perform(one, folder / str(number), expected=expected)
            outcomes.append(outcome)
            ended = outcome.problem or ", ".join(outcome.ended) or "undisturbed"
            if outcome.problem and options.keep:
                shutil.copytree(folder / str(number), options.keep / str(number))
            mark = "FAIL" if outcome.problem else "ok"
            print(f"{mark} {number} {outcome.seconds:.0f} s {one}: {ended}", flush=True)
            if options.table:
                options.table.write_text(table(outcomes))
    bad = [one for one in outcomes if one.problem]
    print(f"{len(outcomes) - len(bad)} held, {len(bad)} did not; seed {seed}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
