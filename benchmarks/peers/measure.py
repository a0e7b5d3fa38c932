"""From what ranks said of their steps to how long a disturbance held them up."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Held", "Said", "held", "lines_changed", "said_in", "step_s"]


_TOGETHER_S = 1.0
"""Ranks complete a step within this time of each other."""


@dataclass(frozen=True, slots=True)
class Said:
    """A rank has completed a step.

    Attributes:
        t: When, in seconds of the clock.
        pid: The process.
        rank: Its rank, or its machine where ranks have no fixed numbers.
        step: Steps completed.
        world: How many ranks took part.
    """

    t: float
    pid: int
    rank: int
    step: int
    world: int


@dataclass(frozen=True, slots=True)
class Held:
    """What one disturbance cost.

    Attributes:
        pause_s: The longest time between two steps of the whole world, beyond a step.
        stall_s: The longest time without any step of anybody, beyond a step.
        redone: Steps that were done again.
    """

    pause_s: float
    stall_s: float
    redone: int


def said_in(folder: Path) -> list[Said]:
    """All that ranks said so far, in the order of time; a last line that is not whole is left."""
    found = []
    for path in folder.glob("steps-*.jsonl"):
        *lines, _ = path.read_text().split("\n")
        found += [Said(**json.loads(line)) for line in lines]
    return sorted(found, key=lambda one: one.t)


def whole(said: Sequence[Said], *, world: int) -> list[tuple[float, int, frozenset[int]]]:
    """(when, step, processes) of each step that ``world`` ranks or more have completed together."""
    steps: dict[tuple[int, frozenset[int]], float] = {}
    open_: dict[int, dict[int, Said]] = {}
    for one in said:
        if one.world < world:
            continue
        together = open_.setdefault(one.step, {})
        for each in [each for each in together.values() if one.t - each.t > _TOGETHER_S]:
            del together[each.rank]  # the step was not completed by all, and is done again
        together[one.rank] = one
        if len(together) == one.world:
            pids = frozenset(each.pid for each in together.values())
            steps[one.step, pids] = one.t
            del open_[one.step]
    return sorted((t, step, pids) for (step, pids), t in steps.items())


def step_s(said: Sequence[Said], *, world: int, before: float) -> float:
    """Median seconds of a step of the whole world, of the twenty in front of ``before``."""
    times = [t for t, _, _ in whole(said, world=world) if t < before][-21:]
    return statistics.median(b - a for a, b in itertools.pairwise(times))


def held(said: Sequence[Said], *, world: int, at: float, leaver: int) -> Held | None:
    """What it cost to replace a process.

    Args:
        said: All that ranks said.
        world: Ranks of the job.
        at: When the replacement began: the process was killed, or it was asked for.
        leaver: The process that was replaced.

    Returns:
        None as long as the world is not whole without it.
    """
    steps = whole(said, world=world)
    before = [one for one in steps if one[0] <= at]
    after = [one for one in steps if one[0] > at and leaver not in one[2]]
    if not before or not after:
        return None
    again, first, _ = after[0]
    way = [one for one in steps if before[-1][0] <= one[0] <= again]
    reached = max(step for t, step, _ in way if t < again)
    usual = step_s(said, world=world, before=at)
    times = [one.t for one in said if before[-1][0] <= one.t <= again]
    return Held(
        pause_s=max(0.0, _longest([t for t, _, _ in way]) - usual),
        stall_s=max(0.0, _longest(times) - usual),
        redone=max(0, reached + 1 - first),
    )


def _longest(times: Sequence[float]) -> float:
    return max(b - a for a, b in itertools.pairwise(times))


def lines_changed(program: Path, plain: Path) -> int:
    """Lines of ``program`` that ``plain`` does not have, without comments and empty ones."""

    def lines(path: Path) -> list[str]:
        code = path.read_text().split('"""', 2)[2]
        stripped = [line.strip() for line in code.splitlines()]
        return [line for line in stripped if line and not line.startswith("#")]

    known = lines(plain)
    new = 0
    for line in lines(program):
        if line in known:
            known.remove(line)
        else:
            new += 1
    return new
