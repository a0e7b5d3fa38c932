"""Two replicas of planner and detector as real processes on a real bus; the leader dies or sleeps.

The machines are scripted, but they refuse what an earlier planner says as the real agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator

import pytest
from tests.support.scripted import JOB, Replica, Stage, Starter, replicas, staged

from trainmover.commands import Command, Lead, Prepare, Recover
from trainmover.events import machine
from trainmover.events.incident import IncidentOpened
from trainmover.events.migration import MigrationApproved, MigrationCommitted


@pytest.fixture
async def start() -> AsyncIterator[Starter]:
    async with replicas() as start:
        yield start


@pytest.fixture
async def stage(nats_url: str) -> AsyncIterator[Stage]:
    async with staged(nats_url) as stage:
        yield stage


async def leader_and_replica(stage: Stage, start: Starter, **options: float) -> list[Replica]:
    first = await start("planner", stage.url, **options)
    await stage.formed()
    return [first, await start("planner", stage.url, **options)]


async def test_the_replica_ends_the_migration_that_its_leader_left_behind(stage, start):
    leader, _ = await leader_and_replica(stage, start)
    plan = await stage.migrate("w-1")
    leader.send(signal.SIGKILL)
    killed_s = time.monotonic()
    await stage.carry_out(plan)  # the ranks decide when: they need no planner
    committed = await stage.until(MigrationCommitted)
    assert isinstance(committed, MigrationCommitted)
    assert committed.membership == plan.membership
    assert time.monotonic() - killed_s < 10
    assert (await stage.migrate("w-0")).epoch > plan.epoch


async def test_a_dead_leader_of_the_same_host_is_not_waited_for(stage, start):
    leader, _ = await leader_and_replica(stage, start, lease_s=60)
    plan = await stage.migrate("w-1")
    leader.send(signal.SIGKILL)
    await leader.process.wait()
    await stage.carry_out(plan)
    await stage.until(MigrationCommitted, within_s=15)


async def test_a_leader_that_slept_is_not_obeyed_when_it_wakes_up(stage, start):
    leader, _ = await leader_and_replica(stage, start)
    first = await stage.migrate("w-1")
    leader.send(signal.SIGSTOP)
    await stage.carry_out(first)
    await stage.until(MigrationCommitted)  # the replica leads
    taken_over = len(stage.facts)
    terms = {name: one.term for name, one in stage.machines.items()}
    # Both would now plan a recovery: the sleeper finds all of this in its inbox.
    await stage.accuse("w-2")
    approved = await stage.until(MigrationApproved, count=2)
    assert isinstance(approved, MigrationApproved)
    leader.send(signal.SIGCONT)
    async with asyncio.timeout(10):
        assert await leader.process.wait() == 75
    await stage.carry_out(approved.plan)
    await stage.until(MigrationCommitted, count=2)
    for name, one in stage.machines.items():
        obeyed = [command.term for command in one.obeyed]
        assert obeyed == sorted(obeyed), name
        assert any(isinstance(command, Lead) for command in one.obeyed), name
        late = [c for c in one.obeyed if c.term < terms[name] and isinstance(c, Recover)]
        assert late == []
    plans = {}
    for machine_ in stage.machines.values():
        for command in machine_.obeyed:
            if isinstance(command, Prepare | Recover):
                membership = plans.setdefault(command.plan.epoch, command.plan.membership)
                assert membership == command.plan.membership, "an epoch with two memberships"
    after = [one.payload for one in stage.facts[taken_over:] if one.source == "/planner"]
    assert sum(isinstance(fact, MigrationApproved) for fact in after) == 1


async def test_what_a_slept_leader_had_sent_late_is_refused_by_its_term(stage, start):
    """The gap that no clock closes: stopped between looking at the lease and sending."""
    leader, _ = await leader_and_replica(stage, start)
    plan = await stage.migrate("w-1")
    old = stage.machines["w-0"].term
    leader.send(signal.SIGKILL)
    await stage.carry_out(plan)
    await stage.until(MigrationCommitted)
    one = stage.machines["w-0"]
    await one.until(lambda: one.term > old)
    stale = plan.model_copy(
        update={"id": "m-0666", "membership": plan.membership.replace({}, epoch=666)}
    )
    await stage.bus.send_command(JOB, "w-0", Recover(plan=stale, term=old), id="late")

    def is_stale(command: Command) -> bool:
        return isinstance(command, Recover) and command.plan.id == "m-0666"

    await one.until(lambda: any(map(is_stale, one.heard)))
    assert not any(map(is_stale, one.obeyed))


async def test_a_leader_that_is_asked_to_end_hands_over_at_once(stage, start):
    leader, _ = await leader_and_replica(stage, start, lease_s=60)
    leader.send(signal.SIGTERM)
    assert await leader.process.wait() == 0
    async with asyncio.timeout(15):
        while True:
            with contextlib.suppress(Exception):
                await stage.migrate("w-1")
                break


async def test_the_detector_that_takes_over_says_what_the_dead_one_could_not(stage, start):
    first = await start("detector", stage.url)
    await start("planner", stage.url)
    await stage.formed()
    await start("detector", stage.url)
    first.send(signal.SIGKILL)
    await stage.machines["w-1"].say(
        machine.WorkerExited(machine="w-1", generation=0, rank=1, epoch=1, exit_code=None, signal=9)
    )
    opened = await stage.until(IncidentOpened)
    assert isinstance(opened, IncidentOpened)
    assert (opened.kind, opened.machine) == ("machine_failed", "w-1")
    await stage.until(MigrationApproved)
    assert sum(isinstance(one.payload, IncidentOpened) for one in stage.facts) == 1
