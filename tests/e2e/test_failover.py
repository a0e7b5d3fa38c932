"""Two replicas of planner and detector as real processes on a real bus; the leader dies or sleeps.

The machines are scripted, but they refuse what an earlier planner says as the real agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from trainmover import observe
from trainmover.bus.nats import NatsBus
from trainmover.bus.protocol import Bus
from trainmover.commands import Command, Lead, MigrateRequest, Prepare, Recover, Start, Warm
from trainmover.events import executor, machine
from trainmover.events.envelope import Envelope
from trainmover.events.incident import IncidentOpened
from trainmover.events.migration import (
    JobFormed,
    MigrationApproved,
    MigrationCommitted,
    MigrationPreparing,
)
from trainmover.plan import Plan
from trainmover.topology import Frozen, Machine, Membership

JOB = "failover"
LEASE_S = 1.0
NAMES = ("w-0", "w-1", "w-2", "w-3", "w-4")


class Replica:
    """One process of a service."""

    def __init__(self, service: str, process: asyncio.subprocess.Process) -> None:
        self.service, self.process = service, process

    @classmethod
    async def start(cls, service: str, url: str, *, lease_s: float = LEASE_S) -> Replica:
        argv = ["-m", f"trainmover_{service}", "--job", JOB, "--nats", url, "--lease", str(lease_s)]
        if service == "planner":
            argv += ["--form-quiet", "0.2"]
        return cls(service, await asyncio.create_subprocess_exec(sys.executable, *argv))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Scripted:
    """A machine that reports what it is told to, and obeys only the latest planner."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus, self.name = bus, name
        self.term = 0
        self.heard: list[Command] = []
        self.obeyed: list[Command] = []
        self._told = asyncio.Condition()

    async def until(self, holds: Callable[[], bool], *, within_s: float = 10) -> None:
        """Wait for a command after which ``holds``."""
        async with asyncio.timeout(within_s), self._told:
            await self._told.wait_for(holds)

    async def say(self, payload: Frozen) -> None:
        source = f"/machine/{self.name}"
        await self.bus.publish(observe.new_event(job=JOB, source=source, payload=payload))

    async def run(self) -> None:
        me = Machine(name=self.name, generation=0, endpoints=(f"{self.name}:1",))
        await self.say(
            machine.MachineRegistered(machine=me, nnodes_min=3, nnodes_max=5, pid=1, host="h")
        )
        async for delivery in self.bus.commands(JOB, self.name):
            command = delivery.payload
            self.heard.append(command)
            if command.term >= self.term:  # as trainmover_executor.agent.core does
                self.term = command.term
                self.obeyed.append(command)
                await self._obey(command)
            async with self._told:
                self._told.notify_all()
            await delivery.ack()

    async def _obey(self, command: Command) -> None:
        if isinstance(command, Start):
            rank = command.slot
            layout = executor.JobLayoutKnown(machine=self.name, rank=rank, replicas=(0, 1, 2))
            await self.say(layout)
        if isinstance(command, Warm):
            endpoints = {slot: (f"{self.name}:9{slot}",) for slot in command.slots}
            about = {"machine": self.name, "generation": 0}
            await self.say(machine.MachineWarming.model_validate({**about, "endpoints": endpoints}))
            for slot in command.slots:
                more = {"slot": slot, "shadow_iterations": 3, "warm_s": 0.1}
                await self.say(machine.MachineReady.model_validate({**about, **more}))


class Stage:
    """The bus, five machines, and everything that is said."""

    def __init__(self, url: str, bus: Bus) -> None:
        self.url, self.bus = url, bus
        self.machines = {name: Scripted(bus, name) for name in NAMES}
        self.facts: list[Envelope] = []
        self._changed = asyncio.Condition()

    async def listen(self) -> None:
        async for delivery in self.bus.events(JOB):
            async with self._changed:
                self.facts.append(delivery.payload)
                self._changed.notify_all()

    async def until(self, kind: type[Frozen], *, count: int = 1, within_s: float = 20) -> Frozen:
        def found() -> list[Frozen]:
            return [one.payload for one in self.facts if isinstance(one.payload, kind)]

        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]

    async def report(self, kind: type[Frozen], plan: Plan) -> None:
        extra = {"phases_s": {}} if kind is executor.PlanSwitched else {}
        for rank in range(3):
            name = plan.membership.machine_of(rank)
            fields = {"migration": plan.id, "machine": name, "rank": rank, "epoch": plan.epoch}
            await self.machines[name].say(kind.model_validate({**fields, "step": 9, **extra}))

    async def carry_out(self, plan: Plan) -> None:
        await self.report(executor.PlanSwitched, plan)
        await self.report(executor.PlanCommitted, plan)

    async def formed(self) -> Membership:
        formed = await self.until(JobFormed)
        assert isinstance(formed, JobFormed)
        await self.until(machine.MachineReady, count=6)
        await self.until(executor.JobLayoutKnown, count=3)
        return formed.membership

    async def migrate(self, name: str) -> Plan:
        before = sum(isinstance(one.payload, MigrationPreparing) for one in self.facts)
        await self.bus.request(JOB, "migrate", MigrateRequest(machine=name))
        await self.until(MigrationPreparing, count=before + 1)
        approved = await self.until(MigrationApproved, count=before + 1)
        assert isinstance(approved, MigrationApproved)
        return approved.plan

    def accuse(self, name: str) -> Awaitable[None]:
        opened = IncidentOpened(
            id=f"i-{name}",
            kind="machine_failed",
            machine=name,
            epoch=2,
            confidence=1.0,
            summary=f"{name} is gone",
            detector="test",
        )
        return self.bus.publish(observe.new_event(job=JOB, source="/detector", payload=opened))


Starter = Callable[..., Awaitable[Replica]]


@pytest.fixture
async def start() -> AsyncIterator[Starter]:
    replicas: list[Replica] = []

    async def make(service: str, url: str, **options: float) -> Replica:
        replicas.append(await Replica.start(service, url, **options))
        return replicas[-1]

    yield make
    for replica in replicas:
        await replica.end()


@pytest.fixture
async def stage(nats_url: str) -> AsyncIterator[Stage]:
    async with NatsBus(nats_url, name="test") as bus:
        await bus.setup()
        stage = Stage(nats_url, bus)
        tasks = [asyncio.ensure_future(stage.listen())]
        tasks += [asyncio.ensure_future(one.run()) for one in stage.machines.values()]
        yield stage
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


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
                seats = plans.setdefault(command.plan.epoch, command.plan.membership)
                assert seats == command.plan.membership, "an epoch with two memberships"
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
