"""One job through one history of failures, in virtual time; pure."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trainmover.job.topology import Layout
from trainmover.protocol.private_state import holder_of
from trainmover_simulator.failures import (
    DAY_S,
    GPUS_PER_MACHINE,
    Failure,
    FailureModel,
    draw,
)
from trainmover_simulator.scenario import Scenario
from trainmover_simulator.systems import System

__all__ = ["Job", "Outcome", "ends_job", "histories", "replay"]

_POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class Job:
    """What is simulated.

    Attributes:
        gpus: GPUs that train.
        days: How long.
        standbys: Machines that wait beside them, for systems that know standbys.
        per_machine: GPUs in a machine.
    """

    gpus: int
    days: float
    standbys: int = 0
    per_machine: int = GPUS_PER_MACHINE

    @property
    def machines(self) -> int:
        """Machines that train."""
        return -(-self.gpus // self.per_machine)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a system made of a history.

    Attributes:
        system: Its name.
        ettr: Share of the job's GPU time that went into steps that stayed.
        wasted_gpu_hours: All other GPU time, that of standbys included.
        standby_gpu_hours: GPU time of standbys.
        interruptions: Times that all ranks stood still.
        standbys_used: Standbys that took a failed machine's slot.
        standbys_short: Failures that more standbys would have helped.
        restarts: Failures after which the job started again from a checkpoint.
        days: Length of the history.
        pauses_s: From each interruption until all ranks went on, in seconds.
        curve: (day, GPU-hours wasted until then), for a plot.
    """

    system: str
    ettr: float
    wasted_gpu_hours: float
    standby_gpu_hours: float
    interruptions: int
    standbys_used: int
    standbys_short: int
    restarts: int
    days: float
    pauses_s: Sequence[float] = ()
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def wasted_gpu_hours_per_week(self) -> float:
        """The waste, for each seven days."""
        return self.wasted_gpu_hours * 7 / self.days


def histories(
    model: FailureModel, scenario: Scenario, job: Job, *, seed: int
) -> tuple[tuple[Failure, ...], tuple[Failure, ...]]:
    """Failures of the machines that train, and of the standbys; each with a seed of its own.

    So one standby more changes nothing about what happens to the job.
    """
    mixed = replace(
        model,
        racks=model.racks or scenario.racks,
        switches=model.switches or scenario.switches,
    )
    alone = replace(model, planned=0.0, racks=0.0, switches=0.0)
    return (
        draw(mixed, machines=job.machines, days=job.days, seed=f"{seed}:members"),
        draw(alone, machines=job.standbys, days=job.days, seed=f"{seed}:standbys"),
    )


def ends_job(slots: Sequence[int], machines: int) -> bool:
    """Whether a rank's private state is lost with these slots: its keepers are all among them.

    The planner's own rule, asked with one rank for each machine.
    """
    if len(slots) < 2 or machines < 2:
        return False
    layout = Layout(slots=machines, ranks_per_slot=1)
    lost = set(slots)
    return any(holder_of(slot, layout, joining=lost) is None for slot in slots)


def replay(
    system: System,
    scenario: Scenario,
    job: Job,
    failures: Sequence[Failure],
    *,
    of_standbys: Sequence[Failure] = (),
    passed: Callable[[float], None] | None = None,
) -> Outcome:
    """Let a system go through a history.

    Args:
        system: Whose recovery it is.
        scenario: What surrounds the job.
        job: Its size and length.
        failures: What happens to the machines that train, in order of time.
        of_standbys: What happens to standbys.
        passed: Told now and then which share of the time has passed.
    """
    run = _Run(system, scenario, job)
    events = [(one.at_s, 0, one) for one in failures]
    events += [(one.at_s, 1, one) for one in of_standbys]
    events.sort(key=lambda item: item[:2])
    for number, (at_s, whose, failure) in enumerate(events):
        if at_s >= run.end_s:
            break
        run.pass_time(at_s)
        if whose == 0:
            run.hit(failure)
        else:
            run.lose_standby(at_s)
        if passed is not None and number % 256 == 0:
            passed(at_s / run.end_s)
    return run.finish()


@dataclass(slots=True)
class _Run:
    system: System
    scenario: Scenario
    job: Job
    end_s: float = 0.0
    up_s: float = 0.0
    """When training goes on, or went on."""
    saved_s: float = 0.0
    """Since when checkpoints were made in their rhythm."""
    still_s: float = 0.0
    """Standstill of all ranks."""
    lost_s: float = 0.0
    """Steps of all ranks that are done again."""
    idle_gpu_s: float = 0.0
    """Standstill of some."""
    pauses_s: array[float] = field(default_factory=lambda: array("d"))
    used: int = 0
    short: int = 0
    restarts: int = 0
    warm: int = 0
    coming: list[float] = field(default_factory=list)
    """When further standbys will be warm."""
    growing: list[float] = field(default_factory=list)
    """When a failed machine's successor will take part."""
    curve: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end_s = self.job.days * DAY_S
        self.warm = self.job.standbys if self.system.standby_s is not None else 0

    # -- what happens ----------------------------------------------------------------------------

    def hit(self, failure: Failure) -> None:
        """Machines that train leave."""
        planned = failure.kind == "planned"
        if planned:
            self._take(failure)
            self._stop(failure.at_s, self._planned_s(), rolls_back=None)
        elif self.system.restart_s and ends_job(failure.slots, self.job.machines):
            self._restart(failure.at_s)
        else:
            self._stop(failure.at_s, self._crash_s(failure), rolls_back=self.system.restarts)
        self._successors(failure)
        if not self.curve or failure.at_s - self.curve[-1][0] * DAY_S > self.end_s / _POINTS:
            self.curve.append((failure.at_s / DAY_S, self._wasted_gpu_s(failure.at_s) / 3_600))

    def lose_standby(self, at_s: float) -> None:
        """A standby fails; one that is not there, or not warm yet, does so without effect."""
        if self.warm:
            self.warm -= 1
            self._order(at_s)

    def pass_time(self, now_s: float) -> None:
        """Standbys get warm, and successors take part."""
        while self.coming and self.coming[0] <= now_s:
            heapq.heappop(self.coming)
            self.warm += 1
        while self.growing and self.growing[0] <= now_s:
            self._stop(heapq.heappop(self.growing), self.system.grow_s, rolls_back=None)

    def finish(self) -> Outcome:
        """What came of it."""
        self.pass_time(self.end_s)
        gpus = self.job.gpus
        # What goes on after the end is no waste of this time.
        self.still_s = min(self.still_s - max(self.up_s - self.end_s, 0.0), self.end_s)
        standby_s = self._standby_gpu_s(self.end_s)
        wasted_s = min(self._wasted_gpu_s(self.end_s), gpus * self.end_s + standby_s)
        self.curve.append((self.job.days, wasted_s / 3_600))
        return Outcome(
            system=self.system.name,
            ettr=1 - (wasted_s - standby_s) / (gpus * self.end_s),
            wasted_gpu_hours=wasted_s / 3_600,
            standby_gpu_hours=standby_s / 3_600,
            interruptions=len(self.pauses_s),
            standbys_used=self.used,
            standbys_short=self.short,
            restarts=self.restarts,
            days=self.job.days,
            pauses_s=self.pauses_s,
            curve=tuple(self.curve),
        )

    # -- what it costs ---------------------------------------------------------------------------

    def _planned_s(self) -> float:
        system, scenario = self.system, self.scenario
        infra_s = scenario.infra_s if system.restarts or scenario.infra_for_all else 0.0
        if system.grow_s and scenario.grows_at_once:
            return infra_s + system.grow_s
        return infra_s + system.planned_s

    def _crash_s(self, failure: Failure) -> float:
        system, scenario = self.system, self.scenario
        always_s = scenario.detect_s + (scenario.infra_s if scenario.infra_for_all else 0.0)
        fetch_s = 0.0 if scenario.infra_for_all else scenario.infra_s
        if system.standby_s is not None:
            if self._take(failure):
                return always_s + system.standby_s
            self.short += 1
        if system.waits:
            return always_s + fetch_s + system.crash_s
        if system.grow_s and scenario.grows_at_once:
            return always_s + system.grow_s
        return always_s + system.crash_s

    def _take(self, failure: Failure) -> bool:
        """Put standbys into the slots; whether there are enough that are warm."""
        taken = min(len(failure.slots), self.warm)
        self.warm -= taken
        self.used += taken
        for _ in range(taken):
            self._order(failure.at_s)
        return taken == len(failure.slots)

    def _restart(self, at_s: float) -> None:
        """The job begins anew, and its standbys warm up anew."""
        scenario = self.scenario
        for_s = scenario.detect_s + scenario.infra_s + self.system.restart_s
        self._stop(at_s, for_s, rolls_back=True)
        if self.system.standby_s is not None:
            self.warm = 0
            self.coming = [self.up_s + scenario.warm_s] * self.job.standbys

    def _stop(self, at_s: float, for_s: float, *, rolls_back: bool | None) -> None:
        """All ranks stand still.

        Args:
            at_s: From when on.
            for_s: How long.
            rolls_back: To a checkpoint, or to the step before; None: nothing is done again.
        """
        if for_s <= 0:
            return
        self.restarts += bool(rolls_back)
        ran_s = max(at_s - self.up_s, 0.0)
        if rolls_back and ran_s and self.scenario.checkpoint_s:
            self.lost_s += (at_s - self.saved_s) % self.scenario.checkpoint_s
        elif rolls_back is False:
            self.lost_s += min(ran_s, self.scenario.step_s)
        if at_s >= self.up_s:
            self.up_s, began_s = at_s, at_s
        else:
            began_s = self.up_s if self.scenario.one_after_another else at_s
        until_s = max(self.up_s, began_s + for_s)
        self.still_s += until_s - self.up_s
        self.pauses_s.append(until_s - at_s)
        self.up_s = self.saved_s = until_s

    def _successors(self, failure: Failure) -> None:
        """What stands still, beside training, until others are in the place of who left."""
        system, scenario = self.system, self.scenario
        if system.waits or (system.grow_s and scenario.grows_at_once):
            return
        for_s = scenario.infra_s + system.group_s
        idle = len(failure.slots) * self.job.per_machine
        if system.group:
            groups = {slot * self.job.per_machine // system.group for slot in failure.slots}
            idle = len(groups) * system.group
        self.idle_gpu_s += min(idle, self.job.gpus) * min(for_s, self.end_s - failure.at_s)
        if system.grow_s:
            heapq.heappush(self.growing, failure.at_s + for_s)

    def _order(self, at_s: float) -> None:
        heapq.heappush(self.coming, at_s + self.scenario.refill_s + self.scenario.warm_s)

    def _standby_gpu_s(self, until_s: float) -> float:
        if self.system.standby_s is None:
            return 0.0
        return self.job.standbys * self.job.per_machine * until_s

    def _wasted_gpu_s(self, until_s: float) -> float:
        whole_s = self.still_s + self.lost_s
        return whole_s * self.job.gpus + self.idle_gpu_s + self._standby_gpu_s(until_s)
