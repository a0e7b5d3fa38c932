"""How many standbys a job needs: a birth-death model of its machines, solved without chance.

The state is the number of machines that are away, for repair or because they are in quarantine.
Failures raise it by one, or by a group; what left together comes back together. In the long run as
many machines leave as come back, for single machines and for groups, which gives the share of time
of each state from those below it (docs/howto/standbys.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from trainmover.errors import ConfigError

__all__ = [
    "HOUR_S",
    "MOST_STANDBYS",
    "Demand",
    "Figures",
    "Target",
    "advised",
    "cheapest",
    "figures",
    "needed",
    "reserve_for",
]

HOUR_S: Final = 3_600.0
_WEEK_H: Final = 168.0

MOST_STANDBYS: Final = 100_000
_MOST_AWAY: Final = 20_000
"""Machines away on average, above which the sums take too long."""

_NEGLIGIBLE: Final = 1e-22
_LARGE: Final = 1e200
_LOOKED_AT: Final = 100

Target = Literal["failures", "time"]
"""What is to be held: the share of failures that find standbys for all the machines that they take,
or the share of time in which every slot has a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What takes machines away from a job and its standbys, and what brings them back.

    Attributes:
        machines: Slots of the job.
        failure_s: Mean time between two failures of one machine, in seconds; exponential. A failure
            that takes a group counts once. Standbys fail as often, one at a time.
        repair_s: Mean time from a loss until another standby is warm in its place, in seconds.
        group: Machines with slots that a correlated failure takes (a rack, a switch); they are
            repaired together.
        group_share: Share of the failures that do so, 0 to 1.
        move_s: Mean time between planned moves that policy wants, in seconds; None: it moves
            nobody. A machine that was moved away is away like one that failed.
        elsewhere_s: Seconds until a slot without a standby gets a machine from elsewhere (a
            scheduler); None: the job waits for the first machine that is repaired.
    """

    machines: int
    failure_s: float
    repair_s: float
    group: int = 1
    group_share: float = 0.0
    move_s: float | None = None
    elsewhere_s: float | None = None

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise ConfigError("a job has at least one machine: give the number of its slots.")
        for what, value in (("between failures", self.failure_s), ("of a repair", self.repair_s)):
            if not 0 < value < math.inf:
                raise ConfigError(f"the time {what} is {value:g} s: give one that is above zero.")
        if not 0 <= self.group_share <= 1:
            raise ConfigError("the share of failures that take a group is from 0 to 1.")
        if not 1 <= self.group <= self.machines:
            raise ConfigError(
                f"a failure cannot take {self.group} of {self.machines} machines: "
                f"give a group of 1 to {self.machines}."
            )
        if self.load > _MOST_AWAY:
            raise ConfigError(
                f"{self.load:,.0f} machines would be away at a time: repairs take too long for so "
                "many failures. Look at the units of both."
            )

    @property
    def lost_at_once(self) -> float:
        """Machines that a failure takes, on average."""
        return 1 + self.group_share * (self.group - 1)

    @property
    def load(self) -> float:
        """Machines that would be away on average, were there always standbys enough."""
        moves = 0.0 if self.move_s is None else self.repair_s / self.move_s
        return self.machines * self.lost_at_once * self.repair_s / self.failure_s + moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What comes of a number of standbys, in the long run.

    Attributes:
        standbys: Their number.
        reserve: Standbys that planned moves leave for failures.
        failures_covered: Share of the failures that find a standby at once for each machine taken.
        machines_covered: Share of the lost machines whose slot finds a standby at once.
        time_filled: Share of time in which every slot has a machine.
        shortage_every_s: Mean seconds from the beginning of a shortage to that of the next one;
            infinite where there is none. A shortage is a time in which a slot has no machine.
        shortage_s: Mean length of one, in seconds.
        wait_s: Mean wait of a slot for a machine, in seconds, over all machines that are lost.
        moves_at_once: Share of the planned moves that need not wait for the reserve; None: there
            are none.
        standby_hours: Machine-hours of standbys, a week.
        lost_hours: Machine-hours of the job that stands still because a slot is empty, a week.
    """

    standbys: int
    reserve: int
    failures_covered: float
    machines_covered: float
    time_filled: float
    shortage_every_s: float
    shortage_s: float
    wait_s: float
    moves_at_once: float | None
    standby_hours: float
    lost_hours: float

    @property
    def hours(self) -> float:
        """All machine-hours that are not training, a week."""
        return self.standby_hours + self.lost_hours

    def holds(self, target: float, of: Target) -> bool:
        """Whether the target is met."""
        return (self.failures_covered if of == "failures" else self.time_filled) >= target


def figures(demand: Demand, standbys: int, *, reserve: int = 0) -> Figures:
    """What comes of so many standbys.

    Args:
        demand: What takes machines away, and brings them back.
        standbys: Standbys when no machine is away.
        reserve: How many of them planned moves leave for failures.
    """
    chain = _Chain(demand, standbys, reserve)
    shares = chain.shares()
    failures = covered = lost = lost_covered = short = missing = begins = moved = 0.0
    for away, share in enumerate(shares):
        here = max(standbys - away, 0)
        for rate, size in ((chain.alone(away), 1), (chain.together(away), chain.size(away))):
            failures += share * rate
            lost += share * rate * size
            lost_covered += share * rate * min(size, here)
            covered += share * rate * (size <= here)
            if size > here and away <= standbys:
                begins += share * rate
        moved += share * (chain.moves(away) > 0)
        if away > standbys:
            short += share
            missing += share * (away - standbys)
    machines_covered = lost_covered / lost if lost else 1.0
    wait_s = missing / lost if lost else 0.0
    if demand.elsewhere_s is not None:
        begins = failures - covered
        # Two machines that are fetched at a time are counted one after the other.
        short = begins * demand.elsewhere_s
        wait_s = (1 - machines_covered) * demand.elsewhere_s
    short = min(short, 1.0)
    return Figures(
        standbys=standbys,
        reserve=reserve,
        failures_covered=covered / failures if failures else 1.0,
        machines_covered=machines_covered,
        time_filled=1 - short,
        shortage_every_s=1 / begins if begins else math.inf,
        shortage_s=short / begins if begins else 0.0,
        wait_s=wait_s,
        moves_at_once=None if demand.move_s is None else moved,
        standby_hours=standbys * _WEEK_H,
        lost_hours=demand.machines * short * _WEEK_H,
    )


def needed(demand: Demand, target: float, *, of: Target = "failures") -> int:
    """The fewest standbys that hold a target; planned moves then take only what is not needed.

    Args:
        demand: What takes machines away, and brings them back.
        target: The share to hold, above 0 and below 1.
        of: What it is a share of.

    Raises:
        ConfigError: The target is no share, or no number of standbys holds it.
    """
    if not 0 < target < 1:
        raise ConfigError(
            f"a target of {target:g} is no share that can be held: write for instance 99.9%."
        )

    def holds(standbys: int) -> bool:
        # Planned moves are to be possible at all: at least while no machine is away.
        reserve = max(standbys - 1, 0)
        return figures(demand, standbys, reserve=reserve).holds(target, of)

    low, high = -1, 1
    while not holds(high):
        low, high = high, 2 * high
        if high > MOST_STANDBYS:
            raise ConfigError(
                f"{target:.6%} cannot be held with {MOST_STANDBYS:,} standbys: "
                "repair machines sooner, or ask for less."
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def reserve_for(demand: Demand, standbys: int, target: float, *, of: Target = "failures") -> int:
    """The fewest standbys to keep from planned moves so that failures find what the target says.

    It is all of them where the target is not held even then.
    """
    if demand.move_s is None:
        return 0
    low, high = -1, standbys
    while high - low > 1:
        middle = (low + high) // 2
        held = figures(demand, standbys, reserve=middle).holds(target, of)
        low, high = (low, middle) if held else (middle, high)
    return high


def advised(demand: Demand, standbys: int, target: float, *, of: Target = "failures") -> Figures:
    """What comes of so many standbys, with the reserve that suits the target best."""
    reserve = reserve_for(demand, standbys, target, of=of)
    return figures(demand, standbys, reserve=reserve)


def cheapest(demand: Demand, target: float, *, of: Target = "failures", most: int) -> int:
    """The number of standbys, up to ``most``, with the fewest machine-hours that are not training.

    Where that are many, it looks at some of them first, and then around the best.
    """

    def best(numbers: range) -> int:
        return min(numbers, key=lambda one: advised(demand, one, target, of=of).hours)

    apart = -(-(most + 1) // _LOOKED_AT)
    near = best(range(0, most + 1, apart))
    return best(range(max(near - apart, 0), min(near + apart, most) + 1)) if apart > 1 else near


class _Chain:
    """The rates of each state, and the share of time of each.

    Args:
        demand: What takes machines away, and brings them back.
        standbys: Standbys when no machine is away.
        reserve: How many of them planned moves leave.
    """

    def __init__(self, demand: Demand, standbys: int, reserve: int) -> None:
        self._demand = demand
        self._standbys = standbys
        self._reserve = reserve
        self._rate = 1 / demand.failure_s
        self._move = 0.0 if demand.move_s is None else 1 / demand.move_s
        # A slot that gets its machine from elsewhere takes none of those that come back.
        waits = demand.elsewhere_s is None
        self._most_away = standbys + (demand.machines if waits else 0)

    def training(self, away: int) -> int:
        """Slots that have a machine."""
        if self._demand.elsewhere_s is not None:
            return self._demand.machines
        return self._demand.machines - max(away - self._standbys, 0)

    def alone(self, away: int) -> float:
        """Failures of single machines with slots, a second."""
        return self.training(away) * self._rate * (1 - self._demand.group_share)

    def together(self, away: int) -> float:
        """Failures that take a group, a second."""
        return self.training(away) * self._rate * self._demand.group_share

    def size(self, away: int) -> int:
        """Machines with slots that a failure of a group takes."""
        return min(self._demand.group, self.training(away))

    def moves(self, away: int) -> float:
        """Planned moves that are carried out, a second."""
        return self._move if self._standbys - away > self._reserve else 0.0

    def shares(self) -> list[float]:
        """The share of time with 0, 1, 2, ... machines away; those that matter."""
        demand, weights, total = self._demand, [1.0], 1.0
        for away in range(1, self._most_away + 1):
            below = away - 1
            idle = max(self._standbys - below, 0) * self._rate
            up = weights[below] * (self.alone(below) + idle + self.moves(below))
            # A group is cut short at the highest state alone, where fewer machines are left for it.
            sizes = range(1, demand.group) if away == self._most_away else ()
            for size in (*sizes, demand.group):
                if size <= away:
                    up += size * weights[away - size] * self.together(away - size)
            weights.append(up * demand.repair_s / away)
            total += weights[-1]
            if weights[-1] > _LARGE:
                weights = [one / _LARGE for one in weights]
                total /= _LARGE
            if weights[-1] < weights[-2] and weights[-1] < _NEGLIGIBLE * total:
                break
        return [one / total for one in weights]
