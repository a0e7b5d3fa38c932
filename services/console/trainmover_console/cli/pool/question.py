"""What ``trainmover pool advise`` was asked, as the model of a pool takes it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from trainmover.errors import ConfigError
from trainmover.policy.model import seconds
from trainmover_simulator.counts import upper_count
from trainmover_simulator.failures import DAY_S, MODELS, RACK
from trainmover_simulator.jobs.losses import Losses
from trainmover_simulator.sizing.formula import HOUR_S, Demand, Target

__all__ = ["Asked", "Question", "long_words"]

_PERIODS: Final = {
    "hour": HOUR_S,
    "day": DAY_S,
    "week": 7 * DAY_S,
    "month": 30 * DAY_S,
    "year": 365 * DAY_S,
}
_UNITS: Final = (
    (730 * DAY_S, 365 * DAY_S, "years"),
    (2 * DAY_S, DAY_S, "d"),
    (HOUR_S, HOUR_S, "h"),
    (120.0, 60.0, "min"),
    (0.0, 1.0, "s"),
)
"""From how many seconds on, in which unit, what it is called."""

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)/([a-z]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A pool, and where each number of it is from.

    Attributes:
        target: The share to hold.
        of: What it is a share of.
        said: A sentence on each number.
        there: Standbys that the job has now; None where no job was looked at.
        cautious: The same with the most failures that what was seen allows (95 %); None where
            the rate was given.
    """

    demand: Demand
    target: float
    of: Target
    said: tuple[str, ...]
    there: int | None
    cautious: Demand | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the command line; what is None is read from the job's facts."""

    machines: int | None
    mtbf: str | None
    failures: str | None
    rates: str | None
    repair: str | None
    group: int | None
    group_share: str | None
    moves: str | None
    elsewhere: str | None
    target: str
    of: Target

    @property
    def needs_facts(self) -> bool:
        """Whether something is left out that only a job's facts can say."""
        rate = self.mtbf or self.failures or self.rates
        return self.machines is None or rate is None or self.repair is None

    def question(self, seen: Losses | None) -> Question:
        """What they mean.

        Args:
            seen: What the job's facts say; None: they were not read.

        Raises:
            ConfigError: A value says nothing, two contradict each other, or one is missing.
        """
        said: list[str] = []
        machines = self._machines(seen)
        failure_s = self._failure_s(machines, seen, said)
        group, share = self._group(machines, seen, said)
        demand = Demand(
            machines=machines,
            failure_s=failure_s,
            repair_s=self._repair_s(seen, said),
            group=group,
            group_share=share,
            move_s=self._move_s(seen, said),
            elsewhere_s=self._elsewhere_s(said),
        )
        return Question(
            demand=demand,
            target=_share(self.target, "--target"),
            of=self.of,
            said=(*said, *_ALWAYS),
            there=None if seen is None else seen.standbys,
            cautious=self._cautious(demand, seen),
        )

    # -- one number each, given or seen ----------------------------------------------------------

    def _machines(self, seen: Losses | None) -> int:
        if self.machines is not None:
            return self.machines
        if seen is None or not seen.slots:
            raise ConfigError("the job has not formed: give the number of its slots, --machines.")
        return seen.slots

    def _failure_s(self, machines: int, seen: Losses | None, said: list[str]) -> float:
        given = [
            (name, value)
            for name, value in (
                ("--mtbf", self.mtbf),
                ("--failures", self.failures),
                ("--rates", self.rates),
            )
            if value is not None
        ]
        if len(given) > 1:
            raise ConfigError(f"{given[0][0]} and {given[1][0]} say the same: give one of them.")
        if self.mtbf is not None:
            found, source = _duration(self.mtbf, "--mtbf", "150d"), "given"
        elif self.failures is not None:
            found, source = _apart_s(self.failures, "--failures") * machines, "given"
        elif self.rates is not None:
            if self.rates not in MODELS:
                known = ", ".join(MODELS)
                raise ConfigError(f"--rates {self.rates} is not known: there are {known}.")
            model = MODELS[self.rates]
            found, source = DAY_S / model.machine_day, model.source
        else:
            found, source = _seen_failure_s(seen)
        said.append(
            f"{machines:,} slot{'s' * (machines != 1)}; a machine fails every "
            f"{long_words(found)}, one of all every {long_words(found / machines)} ({source})"
        )
        return found

    def _repair_s(self, seen: Losses | None, said: list[str]) -> float:
        if self.repair is not None:
            found, source = _duration(self.repair, "--repair", "4h"), "given"
        elif seen is not None and (observed := seen.repair_s) is not None:
            count = f"{seen.returns} time{'s' * (seen.returns != 1)}"
            found, source = observed, f"seen {count} at this job"
        else:
            raise ConfigError(
                "no machine of the job came back, so nobody knows how long that takes: "
                "give --repair, for instance --repair 4h."
            )
        said.append(
            f"another standby is warm in a lost machine's place after {long_words(found)} on "
            f"average ({source}); repairs go on beside each other, and how much their lengths "
            "differ does not matter"
        )
        return found

    def _group(self, machines: int, seen: Losses | None, said: list[str]) -> tuple[int, float]:
        if (self.group is None) != (self.group_share is None):
            raise ConfigError(
                "--group and --group-share belong together: --group 8 --group-share 2% says that "
                "2 % of the failures take 8 machines."
            )
        rated = None if self.rates is None else MODELS[self.rates].racks
        if self.group is not None and self.group_share is not None:
            group, share, source = self.group, _share(self.group_share, "--group-share"), "given"
        elif rated:
            group, share, source = min(RACK, machines), rated, MODELS[self.rates or ""].source
        elif seen is not None and seen.group > 1 and not (self.mtbf or self.failures):
            group, share, source = seen.group, seen.group_share, "seen at this job"
        else:
            said.append(
                "machines fail independently of each other; those that share a rack or a switch do "
                "not, and --group 8 --group-share 2% says so"
            )
            return 1, 0.0
        said.append(
            f"{share * 100:.3g} % of the failures take {group} machines with slots at once, which "
            f"come back together ({source})"
        )
        return group, share

    def _move_s(self, seen: Losses | None, said: list[str]) -> float | None:
        if self.moves is not None:
            found, source = _apart_s(self.moves, "--moves"), "given"
        elif seen is not None and seen.moves and seen.watched_s:
            found, source = seen.watched_s / seen.moves, f"{seen.moves} seen at this job"
        else:
            said.append(
                "policy moves nobody; --moves 3/week says how often, and then keep_reserve is "
                "advised as well"
            )
            return None
        said.append(
            f"policy wants to move a machine every {long_words(found)} ({source}), and it is away "
            "as long as one that failed"
        )
        return found

    def _elsewhere_s(self, said: list[str]) -> float | None:
        if self.elsewhere is None:
            said.append(
                "a slot that finds no standby waits for the first machine that is repaired, and "
                "the whole job with it"
            )
            return None
        found = _duration(self.elsewhere, "--elsewhere", "2m")
        said.append(
            "a slot that finds no standby gets a machine from elsewhere after "
            f"{long_words(found)}, and the whole job waits for it"
        )
        return found

    def _cautious(self, demand: Demand, seen: Losses | None) -> Demand | None:
        """The demand at the highest rate that what was seen allows."""
        if self.mtbf or self.failures or self.rates or seen is None:
            return None
        count = len(seen.failures)
        failure_s = demand.failure_s * count / upper_count(count)
        return replace(demand, failure_s=failure_s)


_ALWAYS: Final = (
    "standbys fail as often as machines with slots, and a failure of a group takes none of them",
    "the pause of a move itself is not counted: it is the same for each number of standbys",
)


def _seen_failure_s(seen: Losses | None) -> tuple[float, str]:
    found = None if seen is None else seen.failure_s
    if seen is None or not found:
        bound = ""
        if seen is not None and seen.machine_s:
            rarest = seen.machine_s / upper_count(0)
            bound = (
                f" In {long_words(seen.machine_s)} of machine time, that only says that a machine "
                f"runs for {long_words(rarest)} or more (95 % sure)."
            )
        raise ConfigError(
            "no machine of the job has failed so far: give --mtbf, for instance --mtbf 150d, or "
            f"published rates, --rates rsc.{bound}"
        )
    count = len(seen.failures)
    return found, (
        f"{count} failure{'s' * (count != 1)} seen in {long_words(seen.machine_s)} of machine time"
    )


def _duration(text: str, option: str, example: str) -> float:
    try:
        found = float(str(seconds(text)))
    except ValueError as error:
        raise ConfigError(f"{option}: {error}.") from error
    if not 0 < found < 1e12:
        raise ConfigError(
            f"{option} {text} is no time that passes: write for instance {option} {example}."
        )
    return found


def _apart_s(text: str, option: str) -> float:
    """Seconds from one to the next of what comes ``6/week``."""
    found = _RATE.fullmatch(text.replace(" ", ""))
    if found is None or found[2] not in _PERIODS or not float(found[1]):
        raise ConfigError(
            f"{option} {text} is no rate: write how many there are in one of "
            f"{', '.join(_PERIODS)}: for instance {option} 6/week."
        )
    return _PERIODS[found[2]] / float(found[1])


def _share(text: str, option: str) -> float:
    number = text.replace(" ", "")
    try:
        # In decimals: 99.9 % is the same number as 0.999.
        found = float(Decimal(number.removesuffix("%")).scaleb(-2 if number.endswith("%") else 0))
    except ArithmeticError:
        found = math.nan
    if not 0 < found < 1:
        raise ConfigError(
            f"{option} {text} is no share between 0 and 1: write for instance 2% or 0.02."
            if option != "--target"
            else f"--target {text} cannot be held: write a share below 1, as 99.9% or 0.999."
        )
    return found


def long_words(seconds: float) -> str:
    """``45 s``, ``12 min``, ``4.5 h``, ``51 d``, ``3.2 years``."""
    if 0 < seconds < 0.01:
        return "< 0.01 s"
    size, unit = next((size, unit) for least, size, unit in _UNITS if seconds >= least)
    number = seconds / size
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"
