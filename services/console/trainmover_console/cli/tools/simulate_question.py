"""What ``trainmover simulate`` was asked, as the simulator takes it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from trainmover.errors import ConfigError
from trainmover_simulator.failures import (
    DAY_S,
    GPUS_PER_MACHINE,
    MODELS,
    Failure,
    FailureModel,
    read_csv,
)
from trainmover_simulator.jobs.measured import Model, model
from trainmover_simulator.jobs.observed import Run
from trainmover_simulator.replay import Job, histories
from trainmover_simulator.scenario import MEASURED, SCENARIOS, Scenario
from trainmover_simulator.systems import SYSTEMS, System

__all__ = ["Asked", "Question"]

_T = TypeVar("_T")
_Changed = TypeVar("_Changed", Scenario, System)
_MOST_EVENTS = 5_000_000
_GPUS = 65_536
_STANDBYS = 32
_RATES = "trainmover"
_WEEK = 7.0
_YEAR = 364.0
_ENOUGH = 10_000
"""Failures of an observed job's rate, after which chance is small."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command line; what was left out is None.

    Attributes:
        run: A job as it was observed, which then says what was left out.
    """

    gpus: int | None
    days: float | None
    standbys: int | None
    systems: str | None
    failures: str | None
    scenario: str | None
    changes: tuple[str, ...]
    seed: int
    sweep: tuple[str, str] | None
    planner: bool
    price: float
    run: Run | None = None

    def question(self) -> Question:
        """What they mean.

        Raises:
            ConfigError: A name or a value is not known.
        """
        own = None if self.run is None else model(self.run)
        systems = SYSTEMS | ({} if own is None else own.systems)
        scenarios = SCENARIOS | ({} if own is None else {own.scenario.name: own.scenario})
        failures = self._failures(own)
        job = self._job(failures)
        wanted = self.systems or ("all" if own is None else ",".join(own.systems))
        names = list(SYSTEMS) if wanted == "all" else wanted.split(",")
        chosen = [_named(name.strip(), systems, "system") for name in names]
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
        wanted = self.scenario or (MEASURED.name if own is None else own.scenario.name)
        scenario = _changed(_named(wanted, scenarios, "scenario"), known[""])
        if scenario.racks + scenario.switches > 1:
            raise ConfigError("racks and switches are shares of all failures: at most 1 together.")
        chosen = [_changed(one, known[one.name]) for one in chosen]
        return Question(
            job=job,
            scenario=scenario,
            systems=tuple(chosen),
            mover=next((one for one in chosen if one.standby_s is not None), systems["trainmover"]),
            failures=failures,
            seed=self.seed,
        )

    def _failures(self, own: Model | None) -> FailureModel | str:
        """A model, or the name of a file."""
        if own is None or self.failures not in {None, "job"}:
            name = self.failures or _RATES
            return MODELS.get(name, name)
        if own.failures is not None:
            return own.failures
        if self.failures == "job":
            raise ConfigError(
                "--failures job: no machine of it failed while it was observed. "
                f"Take one of {', '.join(MODELS)}, or a file."
            )
        published = MODELS[_RATES]
        source = f"no machine of this job failed while it was observed, so {published.source}"
        return replace(published, source=source)

    def _job(self, failures: FailureModel | str) -> Job:
        run = self.run
        per_machine = GPUS_PER_MACHINE if run is None else run.layout.ranks_per_slot
        gpus, standbys, days = self.gpus, self.standbys, self.days
        if gpus is None:
            gpus = _GPUS if run is None else run.layout.world_size
        if standbys is None:
            standbys = _STANDBYS if run is None else run.standbys
        if days is not None and not math.isfinite(days):
            raise ConfigError("--days is no number of days: write one such as 7.")
        job = Job(gpus, _WEEK if days is None else days, standbys, per_machine)
        if run is None or days is not None or isinstance(failures, str):
            return job
        # Chance is to be small, and so is the wait for the answer.
        enough = _ENOUGH * failures.mttf_s(job.machines) / DAY_S
        return replace(job, days=min(_YEAR, float(f"{enough:.3g}")))

    def standby_counts(self, standbys: int) -> range:
        """The counts of a sweep; empty where nobody asked for one.

        Args:
            standbys: Those of the question; for an observed job one less and one more are swept.

        Raises:
            ConfigError: It is none.
        """
        if self.sweep is None:
            near = range(max(0, standbys - 1), standbys + 2)
            return range(0) if self.run is None else near
        what, span = self.sweep
        first, dots, last = span.partition("..")
        if what != "standbys" or not dots or not (first.isdigit() and last.isdigit()):
            raise ConfigError(f"--sweep {what} {span} is not known: write --sweep standbys 0..64.")
        if int(last) < int(first):
            raise ConfigError(f"--sweep standbys {span} is empty: write the smaller count first.")
        return range(int(first), int(last) + 1)


@dataclass(frozen=True, slots=True)
class Question:
    """A job, what surrounds it, and who is compared.

    Attributes:
        mover: The system whose standbys are counted.
        failures: Rates, or the name of a file with a history.
    """

    job: Job
    scenario: Scenario
    systems: tuple[System, ...]
    mover: System
    failures: FailureModel | str
    seed: int

    @property
    def source(self) -> str:
        """Where the failures come from."""
        if isinstance(self.failures, str):
            return f"the file {self.failures}"
        return self.failures.source

    def histories(self, job: Job) -> tuple[tuple[Failure, ...], tuple[Failure, ...]]:
        """Failures of members and of standbys.

        Raises:
            ConfigError: They cannot be had.
        """
        if not isinstance(self.failures, str):
            count = job.days * DAY_S / self.failures.mttf_s(job.machines)
            if count > _MOST_EVENTS:
                raise ConfigError(
                    f"{count:.2g} failures are too many to go through: ask for fewer days."
                )
            return histories(self.failures, self.scenario, job, seed=self.seed)
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
