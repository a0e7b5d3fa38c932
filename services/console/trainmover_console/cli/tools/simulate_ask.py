"""What ``trainmover simulate`` was asked, as the simulator takes it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from trainmover.errors import ConfigError
from trainmover_simulator.failures import MODELS, Failure, read_csv
from trainmover_simulator.replay import Job, histories
from trainmover_simulator.scenario import SCENARIOS, Scenario
from trainmover_simulator.systems import SYSTEMS, System

__all__ = ["Asked", "Question"]

_T = TypeVar("_T")
_Changed = TypeVar("_Changed", Scenario, System)
_MOST_EVENTS = 5_000_000


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command line."""

    gpus: int
    days: float
    standbys: int
    systems: str
    failures: str
    scenario: str
    changes: tuple[str, ...]
    seed: int
    sweep: tuple[str, str] | None
    planner: bool
    price: float

    def question(self) -> Question:
        """What they mean.

        Raises:
            ConfigError: A name or a value is not known.
        """
        if not math.isfinite(self.days):
            raise ConfigError("--days is no number of days: write one such as 7.")
        names = list(SYSTEMS) if self.systems == "all" else self.systems.split(",")
        chosen = [_named(name.strip(), SYSTEMS, "system") for name in names]
        owners = ["", *(one.name for one in chosen)]
        known = {
            name: [one.split("=", 1) for one in self.changes if _owner(one) == name]
            for name in owners
        }
        strangers = [one for one in self.changes if _owner(one) not in known or "=" not in one]
        if strangers:
            raise ConfigError(
                f"--set {strangers[0]} changes nothing: write NAME=VALUE or SYSTEM.NAME=VALUE, "
                f"SYSTEM one of those compared: {', '.join(owners[1:])}."
            )
        scenario = _changed(_named(self.scenario, SCENARIOS, "scenario"), known[""])
        if scenario.racks + scenario.switches > 1:
            raise ConfigError("racks and switches are shares of all failures: at most 1 together.")
        return Question(
            job=Job(self.gpus, self.days, self.standbys),
            scenario=scenario,
            systems=tuple(_changed(one, known[one.name]) for one in chosen),
            failures=self.failures,
            seed=self.seed,
        )

    def standby_counts(self) -> range:
        """The counts of a sweep.

        Raises:
            ConfigError: It is none.
        """
        what, span = self.sweep or ("standbys", "0..0")
        first, dots, last = span.partition("..")
        if what != "standbys" or not dots or not (first.isdigit() and last.isdigit()):
            raise ConfigError(f"--sweep {what} {span} is not known: write --sweep standbys 0..64.")
        if int(last) < int(first):
            raise ConfigError(f"--sweep standbys {span} is empty: write the smaller count first.")
        return range(int(first), int(last) + 1)


@dataclass(frozen=True, slots=True)
class Question:
    """A job, what surrounds it, and who is compared."""

    job: Job
    scenario: Scenario
    systems: tuple[System, ...]
    failures: str
    seed: int

    @property
    def source(self) -> str:
        """Where the failures come from."""
        model = MODELS.get(self.failures)
        return f"the file {self.failures}" if model is None else model.source

    def histories(self, job: Job) -> tuple[tuple[Failure, ...], tuple[Failure, ...]]:
        """Failures of members and of standbys.

        Raises:
            ConfigError: They cannot be had.
        """
        model = MODELS.get(self.failures)
        if model is not None:
            count = job.days * 86_400 / model.mttf_s(job.machines)
            if count > _MOST_EVENTS:
                raise ConfigError(
                    f"{count:.2g} failures are too many to go through: ask for fewer days."
                )
            return histories(model, self.scenario, job, seed=self.seed)
        try:
            with Path(self.failures).open(encoding="utf-8-sig", newline="") as lines:
                return read_csv(lines, machines=job.machines), ()
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(
                f"--failures {self.failures} is no model ({', '.join(MODELS)}) "
                f"and no file that can be read: {error}."
            ) from error


def _owner(change: str) -> str:
    return change.split("=", 1)[0].rpartition(".")[0]


def _named(name: str, known: Mapping[str, _T], what: str) -> _T:
    if name not in known:
        raise ConfigError(f"there is no {what} {name!r}; there are {', '.join(known)}.")
    return known[name]


def _changed(one: _Changed, changes: list[list[str]]) -> _Changed:
    numbers = {f.name for f in fields(one) if isinstance(getattr(one, f.name), float)}
    values: dict[str, Any] = {}
    for name, text in changes:
        key = name.rpartition(".")[2]
        if key not in numbers:
            raise ConfigError(
                f"there is no {name!r} to set; {one.name} has {', '.join(sorted(numbers))}."
            )
        try:
            values[key] = float(text)
        except ValueError as error:
            raise ConfigError(f"--set {name}={text}: {text!r} is no number.") from error
        if not 0 <= values[key] < math.inf:
            raise ConfigError(f"--set {name}={text}: take a number from 0 on.")
    return replace(one, **values)
