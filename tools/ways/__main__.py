"""``python -m tools.ways``: how many files a newcomer has to read for each way through a rank.

A gradient is one ``all_reduce`` of a rank. A planned move is seen at a stayer and a crash at a
survivor: the files that ran around them and do not run in an ordinary step.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.programs.drive import Drive, Rules, Spot
from tests.support.ranks import Nursery

from trainmover.runtime import failpoints

HERE = Path(__file__).resolve().parent
PROGRAM = os.path.relpath(HERE / "program", HERE.parents[1] / "tests/programs/scripts")
TARGETS = {"gradient": 7, "planned move": 14, "crash": 12}
CALM = range(8, 18)
AT = 25
STAYER = 0


def measured() -> dict[str, list[str]]:
    """Files by way."""
    with tempfile.TemporaryDirectory() as name:
        rules = Rules(Path(name) / "rules.json")
        nursery = Nursery(
            environment={
                failpoints.VARIABLE: str(rules.path),
                "PYTHONPATH": f"{HERE / 'site'}:{os.environ.get('PYTHONPATH', '')}",
            }
        )
        try:
            drive = Drive(nursery, rules, Path(name))
            moved = drive.moved(PROGRAM, slot=1, at=AT).results[STAYER]
            spot = Spot("step.begin", AT, 1, steps=8)
            crashed = drive.killed(PROGRAM, spots=[spot], warm_at=AT - 4).results[STAYER]
        finally:
            nursery.close()
    return {
        "gradient": moved["gradient"],
        "planned move": _beyond_a_step(moved),
        "crash": _beyond_a_step(crashed),
    }


def _beyond_a_step(left: dict[str, Any]) -> list[str]:
    steps = {int(index): set(files) for index, files in left["steps"].items()}
    ordinary = set().union(*(steps[index] for index in CALM))
    later = set().union(*(files for index, files in steps.items() if index >= AT - 4))
    return sorted(later - ordinary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    parser.add_argument("--files", action="store_true", help="name them")
    options = parser.parse_args()
    found = measured()
    if options.json:
        rows = [
            {"way": w, "files": f, "count": len(f), "target": TARGETS[w]} for w, f in found.items()
        ]
        print(json.dumps({"rows": rows}))
        return
    for way, files in found.items():
        print(f"{way:14} {len(files):3} files, target {TARGETS[way]}")
        if options.files:
            print(*(f"    {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
