"""The history of a pool of standbys, drawn from a seed: what the formula of ``pool`` is held to.

Here machines fail, are repaired one by one and fill the slot that waits longest; nothing is solved.
So it also says what comes of repairs that the formula does not know: those that all take as long.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from trainmover_simulator.sizing.formula import Demand

__all__ = ["Drawn", "Repair", "Share", "simulate"]

_BATCHES: Final = 20

Repair = Literal["exponential", "constant"]
"""How repairs differ in length; the mean is the same."""


@dataclass(frozen=True, slots=True)
class Share:
    """A measured share.

    Attributes:
        mean: The share.
        error: Half the width of an interval that has the true one in 95 % of all histories.
    """

    mean: float
    error: float

    @classmethod
    def of(cls, batches: list[float]) -> Share:
        """From the shares of equally long parts of a history."""
        deviation = statistics.stdev(batches) / math.sqrt(len(batches))
        return cls(statistics.fmean(batches), 2.09 * deviation)  # Student's t for 20 batches


@dataclass(frozen=True, slots=True)
class Drawn:
    """What came of a history.

    Attributes:
        failures_covered: Share of the failures that found a standby for each machine they took.
        machines_covered: Share of the lost machines whose slot found a standby at once.
        time_filled: Share of time in which every slot had a machine.
        wait_s: Mean wait of a slot for a machine, in seconds, over all lost machines.
        shortages: Times that a slot was without a machine, until none was.
        days: Length of the history.
    """

    failures_covered: Share
    machines_covered: Share
    time_filled: Share
    wait_s: Share
    shortages: int
    days: float


def simulate(
    demand: Demand,
    standbys: int,
    *,
    reserve: int = 0,
    failures: int = 20_000,
    repair: Repair = "exponential",
    seed: int = 0,
) -> Drawn:
    """Go through a history of a job whose slots wait for repaired machines.

    Args:
        demand: What takes machines away, and brings them back. A machine from elsewhere is no part
            of it: ``elsewhere_s`` is not looked at.
        standbys: Standbys when no machine is away.
        reserve: How many of them planned moves leave.
        failures: Length of the history.
        repair: How repairs differ in length.
        seed: The same one gives the same history.
    """
    run = _Run(demand, standbys, reserve, repair, random.Random(seed))  # noqa: S311 - not secret
    run.go(failures // 10)  # every machine is there at first, which is not what is asked
    batches, shortages, began_s = [], run.shortages, run.now_s
    for _ in range(_BATCHES):
        run.tally = _Tally()
        run.go(max(failures // _BATCHES, 1))
        batches.append(run.tally)
    return Drawn(
        failures_covered=_share(batches, lambda one: one.covered / one.failures),
        machines_covered=_share(batches, lambda one: one.lost_covered / one.lost),
        time_filled=_share(batches, lambda one: one.filled_s / one.all_s),
        wait_s=_share(batches, lambda one: one.empty_s / one.lost),
        shortages=run.shortages - shortages,
        days=(run.now_s - began_s) / 86_400,
    )


def _share(batches: list[_Tally], ratio: Callable[[_Tally], float]) -> Share:
    return Share.of([ratio(one) for one in batches])


@dataclass(slots=True)
class _Tally:
    """Counts of one part of a history; times in seconds."""

    failures: int = 0
    covered: int = 0
    lost: int = 0
    lost_covered: int = 0
    all_s: float = 0.0
    filled_s: float = 0.0
    empty_s: float = 0.0
    """Waits of slots that are over, whenever they began."""


@dataclass(slots=True)
class _Run:
    demand: Demand
    standbys: int
    reserve: int
    repair: Repair
    source: random.Random
    now_s: float = 0.0
    idle: int = 0
    """Standbys that are there."""
    empty: deque[float] = field(default_factory=deque)
    """Since when slots have no machine, the oldest first."""
    back: list[float] = field(default_factory=list)
    """When machines that are away come back."""
    shortages: int = 0
    tally: _Tally = field(default_factory=_Tally)

    def __post_init__(self) -> None:
        self.idle = self.standbys

    def go(self, failures: int) -> None:
        """Go on until machines with slots have failed so often again."""
        until = self.tally.failures + failures
        move = 0.0 if self.demand.move_s is None else 1 / self.demand.move_s
        while self.tally.failures < until:
            training = self.demand.machines - len(self.empty)
            rates = (training / self.demand.failure_s, self.idle / self.demand.failure_s, move)
            total = sum(rates)
            next_s = self.now_s + self.source.expovariate(total) if total else math.inf
            if self.back and self.back[0] <= next_s:
                # What was drawn is drawn again: exponential times do not know how old they are.
                self._pass(heapq.heappop(self.back))
                self._repaired()
                continue
            self._pass(next_s)
            what = self.source.choices(("failure", "standby", "move"), rates)[0]
            if what == "failure":
                self._fail(training)
            elif what == "standby" or self.idle > self.reserve:
                self.idle -= 1
                self._away()

    def _fail(self, training: int) -> None:
        """One machine with a slot fails, or a group of them."""
        together = self.source.random() < self.demand.group_share
        lost = min(self.demand.group, training) if together else 1
        found = min(lost, self.idle)
        self.tally.failures += 1
        self.tally.covered += found == lost
        self.tally.lost += lost
        self.tally.lost_covered += found
        self.idle -= found
        if found < lost:
            self.shortages += not self.empty
            self.empty.extend([self.now_s] * (lost - found))
        self._away(lost)

    def _away(self, machines: int = 1) -> None:
        """These machines come back together."""
        mean_s = self.demand.repair_s
        exponential = self.repair == "exponential"
        for_s = self.source.expovariate(1 / mean_s) if exponential else mean_s
        for _ in range(machines):
            heapq.heappush(self.back, self.now_s + for_s)

    def _repaired(self) -> None:
        if self.empty:
            self.tally.empty_s += self.now_s - self.empty.popleft()
        else:
            self.idle += 1

    def _pass(self, until_s: float) -> None:
        self.tally.all_s += until_s - self.now_s
        self.tally.filled_s += 0.0 if self.empty else until_s - self.now_s
        self.now_s = until_s
