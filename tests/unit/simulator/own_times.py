"""Facts of a job whose times are known: the planner's real core, and machines that do as told."""

from __future__ import annotations

from dataclasses import replace

from trainmover.events import executor, incident, migration
from trainmover.job.topology import Frozen
from trainmover_simulator.failures import Failure, FailureModel, draw
from trainmover_simulator.planner_run import decide
from trainmover_simulator.replay import Job
from trainmover_simulator.scenario import Scenario
from trainmover_simulator.systems import SYSTEMS

TIMES = Scenario("own", (), detect_s=7.0, infra_s=90.0, refill_s=500.0, warm_s=60.0)
MOVER = replace(SYSTEMS["trainmover"], crash_s=45.0, standby_s=3.0, planned_s=2.0)
"""Times that nobody published, so that no default can pass for them."""
SLOTS = 8
DAY = Job(gpus=8 * SLOTS, days=1.0, standbys=2)


def facts_of(job: Job, failures: list[Failure]) -> list[tuple[float, Frozen]]:
    """What a job would say that has these times: the planner's real core and modelled machines.

    Ranks are not part of ``decide``: that a step broke, and how long the pause was, is said here.
    """
    found: list[tuple[float, Frozen]] = []
    down: list[float] = []

    def told(at_s: float, fact: Frozen) -> None:
        if isinstance(fact, incident.IncidentOpened) and not down:
            down.append(at_s - TIMES.detect_s)
            found.append((down[0], broken(epoch=fact.epoch)))
            found.append((down[0] + 0.1, broken(epoch=fact.epoch)))
        if isinstance(fact, migration.MigrationApproved) and not down:
            down.append(at_s)
        found.append((at_s, fact))
        if isinstance(fact, migration.MigrationCommitted):
            found.append((at_s, resumed(fact.migration, at_s - down.pop())))
            found.append((at_s, broken(epoch=fact.epoch - 1)))  # a rank that is late to tell

    decide(MOVER, TIMES, job, failures, told=told)
    return found


def step(at_s: float, count: int) -> tuple[float, Frozen]:
    fact = executor.StepProgress(machine="node-0", rank=0, epoch=1, step=count, step_s=1.0)
    return at_s, fact


def broken(*, epoch: int) -> executor.StepBroken:
    return executor.StepBroken(machine="node-0", rank=0, epoch=epoch, committed_step=1, reason="x")


def resumed(id: str, pause_s: float) -> executor.StepResumed:
    return executor.StepResumed(
        machine="node-0",
        rank=0,
        epoch=2,
        step=2,
        pause_s=pause_s,
        step_s=1.0,
        steps_redone=1,
        migration=id,
    )


def history(*, days: float = 1.0, apart_s: float = 1_000.0) -> list[Failure]:
    rough = FailureModel("rough", "for tests", 5.0, planned=0.5)
    kept: list[Failure] = []
    for one in draw(rough, machines=SLOTS, days=days, seed=4):
        if not kept or one.at_s - kept[-1].at_s >= apart_s:
            kept.append(one)
    return kept
