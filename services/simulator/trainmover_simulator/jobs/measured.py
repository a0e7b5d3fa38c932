"""A job's own times as the model's parameters; what was not observed says what it is instead."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainmover_simulator.counts import lower_count, upper_count
from trainmover_simulator.failures import DAY_S, FailureModel
from trainmover_simulator.jobs.observed import Interruption, Run, Took
from trainmover_simulator.scenario import MEASURED, Scenario
from trainmover_simulator.systems import SYSTEMS, System

__all__ = ["Model", "model"]

_PUBLISHED: Final = SYSTEMS["trainmover"]


@dataclass(frozen=True, slots=True)
class Model:
    """What the simulator needs to know of a job.

    Attributes:
        scenario: Its surroundings.
        systems: TrainMover with and without standbys, at the job's own times, by name.
        failures: Its own rate; None where no machine failed yet.
    """

    scenario: Scenario
    systems: dict[str, System]
    failures: FailureModel | None


def model(run: Run) -> Model:
    """The parameters that a run gives."""
    crashes = [one for one in run.interruptions if one.slots and not one.planned]
    warm = [one.switch_s for one in crashes if one.warm]
    cold = [one.switch_s for one in crashes if not one.warm]
    moves = [one.pause_s for one in run.interruptions if one.planned]
    told = _Told(run)
    detect_s = told.of("detection", [one.detect_s for one in crashes], MEASURED.detect_s)
    standby_s = told.of("a crash with a warm standby", warm, _PUBLISHED.standby_s or 0.0)
    planned_s = told.of("a planned move", moves, _PUBLISHED.planned_s)
    warm_s = told.of("a standby to get warm", _seconds(run.warm), MEASURED.warm_s)
    refill_s = told.of("the next standby", _seconds(run.refill), MEASURED.refill_s)
    # Who waits for a machine waits for the one that is on its way to the standbys.
    waits = [one.waited_s for one in crashes if one.waited_s]
    infra_s = told.of("a machine for a job that is held", waits, refill_s)
    # Who comes without being warm has to get warm before it can do what a standby does.
    cold_s = told.of("a crash without a standby", cold, warm_s + standby_s)
    scenario = Scenario(
        name="job",
        about=(*told.lines, "a pause that a rank reports has the step in it that is done again"),
        detect_s=detect_s,
        infra_s=infra_s,
        refill_s=refill_s,
        warm_s=warm_s,
    )
    source = f"this job, {run.seconds / 3_600:.2g} h of it"
    systems = {
        name: replace(
            SYSTEMS[name],
            source=source,
            crash_s=cold_s,
            planned_s=planned_s,
            standby_s=standby_s if SYSTEMS[name].standby_s is not None else None,
        )
        for name in ("trainmover-cold", "trainmover")
    }
    return Model(scenario, systems, _failures(run, crashes, len(moves)))


class _Told:
    """Takes medians, and says what each is."""

    def __init__(self, run: Run) -> None:
        self.lines: list[str] = [
            f"{run.layout.world_size} ranks on {run.layout.slots} machines, "
            f"{run.standbys} standbys, as the job says"
        ]

    def of(self, what: str, values: Sequence[float], otherwise: float) -> float:
        """The median of what was observed, in seconds."""
        if not values:
            self.lines.append(f"{what}: not seen, taken as {otherwise:.3g} s")
            return otherwise
        median = statistics.median(values)
        self.lines.append(
            f"{what}: {median:.3g} s, median of {len(values)} "
            f"({min(values):.3g} to {max(values):.3g})"
        )
        return median


def _seconds(took: Iterable[Took]) -> list[float]:
    return [one.seconds for one in took]


def _failures(run: Run, crashes: Sequence[Interruption], moves: int) -> FailureModel | None:
    """The rate that the run had; few failures say little about the true one."""
    if not crashes or not run.seconds:
        return None
    days = run.layout.slots * run.seconds / DAY_S
    least, most = (limit(len(crashes)) / days for limit in (lower_count, upper_count))
    return FailureModel(
        name="job",
        source=f"this job: {len(crashes)} failures and {moves} planned moves in "
        f"{run.seconds / 3_600:.2g} h, so {_number(len(crashes) / days)} failures of a machine in "
        f"a day (90 %: {_number(least)} to {_number(most)}, if they come by chance)",
        machine_day=len(crashes) / days,
        planned=moves / len(crashes),
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
