"""Several machines change hands in one switch, or die together: still the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from tests.integration.conftest import Gate, KillAt, Run, outcome
from tests.support.ranks import Rank, RanksJob

from trainmover.commands import Prepare, Recover
from trainmover.events.executor import (
    PlanCommitted,
    PlanSwitched,
    StepBroken,
    StepResumed,
)
from trainmover.events.machine import LinkLost
from trainmover.job.plan import Move, Plan
from trainmover.job.topology import Member
from trainmover_executor.messages.worker import Warmed
from trainmover_planner.machines.assignment import sources

pytestmark = pytest.mark.job

Start = Callable[..., tuple[RanksJob, Gate]]
Undisturbed = Callable[..., Run]

PROGRAM = ("ddp", "--steps", "14")
LONG = ("ddp", "--steps", "100")
SHAPES = [
    pytest.param(6, 1, [1, 2], id="neighbours"),
    pytest.param(6, 1, [0, 3], id="apart", marks=pytest.mark.soak),
    pytest.param(6, 1, [0, 5], id="around-the-end", marks=pytest.mark.soak),
    pytest.param(3, 2, [1], id="two-ranks-on-a-machine", marks=pytest.mark.soak),
    pytest.param(4, 2, [1, 2], id="two-machines-of-two-ranks"),
]


def spares(job: RanksJob, slots: Iterable[int]) -> tuple[list[Rank], dict[int, Member]]:
    """A warm standby for each of ``slots``."""
    ranks: list[Rank] = []
    members: dict[int, Member] = {}
    for slot in slots:
        spawned, members[slot] = job.standbys(f"spare-{slot}", slot)
        ranks += spawned
    for rank in ranks:
        rank.expect(Warmed)
    return ranks, members


def stayers(job: RanksJob, slots: Iterable[int]) -> list[Rank]:
    gone = {rank for slot in slots for rank in job.layout.ranks_of(slot)}
    return [rank for rank in job.ranks if rank.spec.rank not in gone]


def kill(job: RanksJob, slots: Iterable[int]) -> None:
    for slot in slots:
        for rank in job.layout.ranks_of(slot):
            job.ranks[rank].process.kill()


def recovery(job: RanksJob, members: dict[int, Member], *, epoch: int | None = None) -> Plan:
    """The plan with the sources that the planner would choose for plain data parallelism."""
    world = tuple(range(job.layout.world_size))
    givers = sources(job.layout, dict.fromkeys(world, (world,)), joining=members)
    return job.plan_of("failure", members, sources=givers, epoch=epoch)


@pytest.mark.parametrize(("slots", "ranks", "leaving"), SHAPES)
def test_planned_moves_in_one_switch_change_no_bit(
    slots: int, ranks: int, leaving: list[int], start: Start, undisturbed: Undisturbed
) -> None:
    job, gate = start(*LONG, slots=slots, ranks_per_slot=ranks)
    joined, members = spares(job, leaving)
    plan = job.plan_of("planned", members)
    for rank in [*job.ranks, *joined]:
        rank.tell(Prepare(plan=plan))
    gate.open()

    staying = stayers(job, leaving)
    assert all(rank.expect(PlanSwitched).copied_because == "" for rank in joined)
    resumed = [rank.expect(StepResumed) for rank in staying]
    kill(job, leaving)  # what their agents do once the switch is committed
    left = [rank for rank in job.ranks if rank not in staying]
    job.took_all(plan, joined)

    assert outcome(job) == undisturbed(*LONG, world=slots * ranks)
    assert {(fact.epoch, fact.steps_redone) for fact in resumed} == {(2, 0)}
    assert not [fact for rank in left for fact in rank.seen if isinstance(fact, LinkLost)]


def test_one_joiner_dies_in_the_switch_and_the_other_stays(
    start: Start, undisturbed: Undisturbed, kill_at: KillAt
) -> None:
    """One slot goes back to its leaver; its private state is with the joiner that did join."""
    job, gate = start(*LONG, slots=6)
    joined, members = spares(job, [1, 2])
    switch = job.plan_of("planned", members)
    kill_at("join.state", machine="spare-1")
    for rank in [*job.ranks, *joined]:
        rank.tell(Prepare(plan=switch))
    gate.open()
    assert joined[1].expect(PlanSwitched).epoch == switch.epoch
    others = [*stayers(job, [1, 2]), joined[1]]
    for rank in others:
        rank.expect(StepBroken)
    everybody = [*others, job.ranks[1]]
    back = Plan(
        id="m-3",
        job="test",
        kind="failure",
        from_epoch=switch.epoch,
        membership=switch.membership.replace({1: job.membership.members[1]}),
        moves=(Move(slot=1, leaver="spare-1", joiner="m1"),),
        sources={1: 3},
    )
    for rank in everybody:
        rank.tell(Recover(plan=back))
    for rank in everybody:
        rank.expect(PlanCommitted)
    job.took_all(back, joined[1:])
    assert outcome(job) == undisturbed(*LONG, world=6)


@pytest.mark.parametrize(("slots", "ranks", "dying"), SHAPES)
def test_machines_that_die_together_change_no_bit(
    slots: int, ranks: int, dying: list[int], start: Start, undisturbed: Undisturbed
) -> None:
    """Also neighbours, each of which keeps the other's private state."""
    job, gate = start(*PROGRAM, slots=slots, ranks_per_slot=ranks)
    joined, members = spares(job, dying)
    for rank in range(slots * ranks):
        gate.wait_for(rank)
    survivors = stayers(job, dying)
    kill(job, dying)
    gate.open()
    for rank in survivors:
        rank.expect(StepBroken)
    plan = recovery(job, members)
    for rank in [*survivors, *joined]:
        rank.tell(Recover(plan=plan))
    resumed = [rank.expect(StepResumed) for rank in survivors]
    job.took_all(plan, joined)

    assert outcome(job) == undisturbed(*PROGRAM, world=slots * ranks)
    assert all(fact.steps_redone <= 1 for fact in resumed)


@pytest.mark.parametrize("second", [2, 4])
def test_a_second_death_during_recovery_replaces_both(
    second: int, start: Start, undisturbed: Undisturbed
) -> None:
    """The first plan reached the first joiner already: it takes part in the newer one."""
    job, gate = start(*PROGRAM, slots=6)
    joined, members = spares(job, [1, second])
    for rank in range(6):
        gate.wait_for(rank)
    kill(job, [1])
    first = recovery(job, {1: members[1]})
    for rank in [*stayers(job, [1, second]), joined[0]]:
        rank.tell(Recover(plan=first))  # it cannot be carried out: ``second`` hears nothing of it
    gate.open()
    survivors = stayers(job, [1, second])
    for rank in survivors:
        rank.expect(StepBroken)
    kill(job, [second])
    newer = recovery(job, members, epoch=first.epoch + 1)
    for rank in [*survivors, *joined]:
        rank.tell(Recover(plan=newer))
    for rank in [*survivors, *joined]:
        rank.expect(PlanCommitted)
    job.took_all(newer, joined)
    assert outcome(job) == undisturbed(*PROGRAM, world=6)


def test_a_death_before_the_first_vote_of_a_recovery_keeps_the_joiner(
    start: Start, undisturbed: Undisturbed
) -> None:
    """It has joined and is in its step when the next machine dies: the newer plan names it again.

    It holds the state by then, so what it is handed is not needed, but must be taken in.
    """
    program = ("ddp", "--steps", "14")
    job, gate = start(*program, slots=6)
    joined, members = spares(job, [1, 2])
    for rank in range(6):
        gate.wait_for(rank)
    kill(job, [1])
    for rank in (0, 2):
        job.ranks[rank].expect(LinkLost)
    first = recovery(job, {1: members[1]})
    # The gate is shut: everybody but the joiner stands in the body of the broken step.
    for rank in [*stayers(job, [1]), joined[0]]:
        rank.tell(Recover(plan=first))
    gate.open()
    assert joined[0].expect(PlanSwitched).epoch == first.epoch
    kill(job, [2])
    survivors = stayers(job, [1, 2])
    newer = recovery(job, members, epoch=first.epoch + 1)
    for rank in [*survivors, *joined]:
        rank.tell(Recover(plan=newer))
    for rank in [*survivors, *joined]:
        while rank.expect(PlanCommitted).epoch != newer.epoch:
            pass
    job.took_all(newer, joined)
    assert outcome(job) == undisturbed(*program, world=6)
