from __future__ import annotations

import pytest

from trainmover.events import executor
from trainmover.events.migration import JobFailed


@pytest.fixture
def sharded(world_class):
    """Two slots and a standby; no rank holds what another one holds."""
    world = world_class(slots=2, spare=1)
    for number in range(3):
        world.register(f"w-{number}")
    world.warming("w-2")
    for rank in range(2):
        world.say(
            executor.JobLayoutKnown(
                machine=f"w-{rank}", rank=rank, replicas=(rank,), redundancy="follower"
            )
        )
    return world


def followed(world, rank, *, machine, epoch=1):
    fact = executor.StateFollowed(machine=machine, rank=rank, follower=1 - rank, epoch=epoch)
    return world.say(fact)


def test_a_follower_hands_over_the_state(sharded):
    followed(sharded, 1, machine="w-0")
    sharded.failed("w-1")
    assert sharded.last_plan().sources == {1: 0}


def test_without_a_current_follower_the_state_is_lost(sharded):
    followed(sharded, 0, machine="w-1")
    commands = sharded.failed("w-1")
    (failed,) = [fact for fact in sharded.facts(commands) if isinstance(fact, JobFailed)]
    assert "The state of rank 1 is lost: no other rank holds it" in failed.reason
    assert "--redundancy follower" in failed.next_step


def test_a_copy_is_gone_with_the_machine_that_kept_it(sharded):
    followed(sharded, 0, machine="w-1")
    followed(sharded, 1, machine="w-0")
    sharded.failed("w-1")
    plan = sharded.last_plan()
    sharded.broken(["w-0"])
    sharded.report(executor.PlanSwitched, plan)
    sharded.report(executor.PlanCommitted, plan)
    assert sharded.ask("status")["redundancy"] == "2 ranks: follower (1 of them current)"
    followed(sharded, 0, machine="w-2", epoch=2)
    assert sharded.ask("status")["redundancy"] == "2 ranks: follower"


def test_a_copy_that_its_owner_gave_up_is_none(sharded):
    followed(sharded, 1, machine="w-0")
    sharded.say(
        executor.JobLayoutKnown(
            machine="w-1", rank=1, replicas=(1,), redundancy="checkpoint", obstacle="exotic"
        )
    )
    commands = sharded.failed("w-1")
    assert any(isinstance(fact, JobFailed) for fact in sharded.facts(commands))


def test_how_many_snapshots_are_there_is_told(sharded):
    for rank in range(2):
        sharded.say(
            executor.JobLayoutKnown(
                machine=f"w-{rank}", rank=rank, replicas=(rank,), redundancy="snapshot"
            )
        )
    followed(sharded, 1, machine="w-0")
    assert sharded.ask("status")["redundancy"] == "2 ranks: snapshot (1 of them current)"


def test_the_reason_for_no_redundancy_is_told(sharded):
    sharded.say(
        executor.JobLayoutKnown(
            machine="w-0", rank=0, replicas=(0,), redundancy="checkpoint", obstacle="exotic"
        )
    )
    text = sharded.ask("status")["redundancy"]
    assert text == "1 rank: checkpoint (exotic), 1 rank: follower (0 of them current)"


def test_ranks_that_a_crash_would_lose_are_counted(sharded):
    assert sharded.ask("status")["unprotected"] == 2
    followed(sharded, 1, machine="w-0")
    assert sharded.ask("status")["unprotected"] == 1
    followed(sharded, 0, machine="w-1")
    assert sharded.ask("status")["unprotected"] == 0
    sharded.say(
        executor.JobLayoutKnown(machine="w-1", rank=1, replicas=(1,), redundancy="checkpoint")
    )
    assert sharded.ask("status")["unprotected"] == 1


def test_replicas_need_no_copy_and_silence_is_no_answer(world_class):
    world = world_class(slots=2, spare=0)
    for number in range(2):
        world.register(f"w-{number}")
    assert world.ask("status")["unprotected"] is None
    for rank in range(2):
        world.say(executor.JobLayoutKnown(machine=f"w-{rank}", rank=rank, replicas=(0, 1)))
    assert world.ask("status")["unprotected"] == 0
