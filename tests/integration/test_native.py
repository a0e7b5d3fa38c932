"""Native libraries in place of links: machines are replaced, and no bit changes.

Gloo stands for NCCL in the hierarchy: what is tried is who builds which group when, and who ends
it, not the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import Gate, Run, outcome, script_of
from tests.integration.test_many_moves import kill, recovery, spares, stayers
from tests.integration.test_torch_surface import results
from tests.support.ranks import Nursery, RanksJob

from trainmover.commands import Prepare, Recover
from trainmover.events.executor import PlanSwitched, StepBroken, StepResumed

pytestmark = pytest.mark.job

SLOTS, RANKS = 3, 2
LONG = ("ddp", "--steps", "100")
SHORT = ("ddp", "--steps", "14")
Start = Callable[..., tuple[RanksJob, Gate]]


hierarchical = pytest.mark.parametrize("native", ["hierarchical-gloo"], indirect=True)
either = pytest.mark.parametrize("native", ["gloo", "hierarchical-gloo"], indirect=True)


@pytest.fixture(scope="module")
def native(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    nursery = Nursery(environment={"TRAINMOVER_COMMUNICATOR": request.param})
    yield nursery
    nursery.close()


@pytest.fixture
def run(native: Nursery, tmp_path: Path) -> Callable[..., Run]:
    """The program without any disturbance."""

    def run(*program: str) -> Run:
        folder = tmp_path / "undisturbed"
        with RanksJob(
            native, script_of(program), slots=SLOTS, ranks_per_slot=RANKS, folder=folder
        ) as job:
            return outcome(job)

    return run


@pytest.fixture
def start(native: Nursery, tmp_path: Path) -> Iterator[Start]:
    """Start a job that waits at a gate."""
    jobs: list[RanksJob] = []

    def begin(*program: str) -> tuple[RanksJob, Gate]:
        gate = Gate(tmp_path / "gate", 5)
        command = [*script_of(program), *gate.options]
        folder = tmp_path / "metrics"
        jobs.append(RanksJob(native, command, slots=SLOTS, ranks_per_slot=RANKS, folder=folder))
        return jobs[-1], gate

    yield begin
    for job in jobs:
        job.close()


@hierarchical
def test_what_torch_offers_gives_what_links_give(
    native: Nursery, nursery: Nursery, tmp_path: Path
) -> None:
    by_links = results(nursery, tmp_path / "links", slots=2, ranks_per_slot=2)
    assert results(native, tmp_path / "native", slots=2, ranks_per_slot=2) == by_links


@hierarchical
def test_a_planned_move_changes_no_bit(start: Start, run: Callable[..., Run]) -> None:
    job, gate = start(*LONG)
    joined, members = spares(job, [1])
    plan = job.plan_of("planned", members)
    for rank in [*job.ranks, *joined]:
        rank.tell(Prepare(plan=plan))
    gate.open()
    assert all(rank.expect(PlanSwitched).copied_because == "" for rank in joined)
    resumed = [rank.expect(StepResumed) for rank in stayers(job, [1])]
    kill(job, [1])  # what its agent does once the switch is committed
    job.took_all(plan, joined)

    assert outcome(job) == run(*LONG)
    assert {(fact.epoch, fact.steps_redone) for fact in resumed} == {(2, 0)}


@either
def test_a_machine_that_dies_changes_no_bit(start: Start, run: Callable[..., Run]) -> None:
    """Nobody waits for a timeout: what waits for the dead ends when links are broken off."""
    job, gate = start(*SHORT)
    joined, members = spares(job, [1])
    for rank in range(SLOTS * RANKS):
        gate.wait_for(rank)
    kill(job, [1])
    gate.open()
    survivors = stayers(job, [1])
    for rank in survivors:
        rank.expect(StepBroken, timeout_s=20)
    plan = recovery(job, members)
    for rank in [*survivors, *joined]:
        rank.tell(Recover(plan=plan))
    resumed = [rank.expect(StepResumed) for rank in survivors]
    job.took_all(plan, joined)

    assert outcome(job) == run(*SHORT)
    assert all(fact.steps_redone <= 1 for fact in resumed)
