"""``python -m tests.simulation --seed 7``: one run with its trace; ``--seeds 0:1000``: many."""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import time
import traceback

from tests.simulation.world import World, play


def attempt(seed: int) -> tuple[int, str, str]:
    """(seed, how it ended, what is wrong)."""
    try:
        _, outcome = play(seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed is to be named
        return seed, "", f"{type(error).__name__}: {error}"
    return seed, outcome.end, ""


def many(seeds: range, *, workers: int) -> tuple[collections.Counter[str], list[tuple[int, str]]]:
    """How the runs ended, and (seed, what is wrong) of those that went wrong."""
    ends: collections.Counter[str] = collections.Counter()
    wrong: list[tuple[int, str]] = []
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for seed, end, error in pool.imap_unordered(attempt, seeds, chunksize=8):
            if error:
                wrong.append((seed, error))
            else:
                ends[end] += 1
    return ends, sorted(wrong)


def main() -> int:
    """0 when all is well."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one run, with its trace")
    parser.add_argument("--seeds", default="0:500", metavar="FROM:TO", help="default %(default)s")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        world = World(arguments.seed, tracing=True)
        try:
            outcome = world.run()
        except Exception:  # noqa: BLE001 - the trace comes first
            print(world.sim.trace())
            traceback.print_exc(file=sys.stdout)
            return 1
        print(world.sim.trace())
        print(outcome)
        return 0
    first, _, last = arguments.seeds.partition(":")
    seeds, started = range(int(first), int(last)), time.monotonic()
    ends, wrong = many(seeds, workers=arguments.workers)
    for end, count in ends.most_common():
        print(f"{count:6}  {end[:160]}")
    for seed, error in wrong[:50]:
        print(f"seed {seed}: {error[:300]}")
    took_s = time.monotonic() - started
    print(f"{len(seeds)} seeds, {len(wrong)} wrong, {took_s:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
