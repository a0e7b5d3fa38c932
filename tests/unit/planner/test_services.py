"""Planner and detector as services on one in-process bus, with scripted agents."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from trainmover.bus.memory.broker import MemoryBroker
from trainmover.bus.memory.bus import MemoryBus
from trainmover.commands import MigrateRequest, Prepare, Recover, Release, Start, Stop, Warm
from trainmover.detection.registry import load
from trainmover.events import executor, machine
from trainmover.events.migration import (
    JobFinished,
    JobFormed,
    MigrationApproved,
    MigrationCommitted,
    MigrationPreparing,
)
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Machine, Membership
from trainmover.protocol.requests import StatusRequest
from trainmover.telemetry.records import RECORD, Batch, encode_batch
from trainmover.tracing import observe
from trainmover_detector.service import DetectorService
from trainmover_planner import core as planner_core
from trainmover_planner import service as planner_service
from trainmover_planner.policy_file import PolicyFiles
from trainmover_planner.service import Planner

JOB = "demo"


class FakeAgent:
    """Does at once whatever it is told, and says so."""

    def __init__(self, bus: MemoryBus, name: str, *, nnodes: tuple[int, int]) -> None:
        self.bus, self.name, self.nnodes = bus, name, nnodes
        self.generation = -1
        self.membership: Membership | None = None
        self.planned: Plan | None = None
        self.log: list[str] = []
        self.recovering_at_s: float | None = None
        self.auto_switch = True

    async def say(self, payload: Frozen) -> None:
        source = f"/machine/{self.name}"
        await self.bus.publish(observe.new_event(job=JOB, source=source, payload=payload))

    async def register(self) -> None:
        self.generation += 1
        me = Machine(
            name=self.name,
            generation=self.generation,
            endpoints=(f"{self.name}:{self.generation}",),
        )
        low, high = self.nnodes
        await self.say(
            machine.MachineRegistered(machine=me, nnodes_min=low, nnodes_max=high, pid=1, host="h")
        )

    @property
    def rank(self) -> int | None:
        return None if self.membership is None else self.membership.slot_of_machine(self.name)

    async def run(self) -> None:
        await self.register()
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(self._beat())
            async for delivery in self.bus.commands(JOB, self.name):
                self.log.append(delivery.payload.verb)
                over = await self._obey(delivery.payload)
                await delivery.ack()
                if over:
                    beat.cancel()
                    return

    async def _beat(self) -> None:
        while True:
            epoch = 0 if self.membership is None else self.membership.epoch
            batch = Batch(JOB, self.name, self.generation, epoch, np.zeros(0, RECORD))
            await self.bus.send_telemetry(JOB, self.name, encode_batch(batch))
            await asyncio.sleep(0.2)

    async def _obey(self, command: object) -> bool:
        match command:
            case Start(membership=membership):
                await self._train(membership)
            case Warm(slots=slots):
                endpoints = {slot: (f"{self.name}:9{slot}",) for slot in slots}
                await self.say(
                    machine.MachineWarming(
                        machine=self.name, generation=self.generation, endpoints=endpoints
                    )
                )
                for slot in slots:
                    await self.say(
                        machine.MachineReady(
                            machine=self.name,
                            generation=self.generation,
                            slot=slot,
                            shadow_iterations=3,
                            warm_s=0.1,
                        )
                    )
            case Prepare(plan=plan):
                self.planned = plan
                await self._prepare(plan)
            case Recover(plan=plan):
                self.recovering_at_s = time.monotonic()
                await self._switch(plan)
            case Release(then="standby"):
                self.membership = None
                await self.register()
            case Release() | Stop():
                return True
            case _:
                pass
        return False

    async def _train(self, membership: Membership) -> None:
        self.membership = membership
        world = tuple(range(membership.layout.world_size))
        assert self.rank is not None
        await self.say(executor.JobLayoutKnown(machine=self.name, rank=self.rank, replicas=world))

    async def _prepare(self, plan: Plan) -> None:
        rank = plan.membership.slot_of_machine(self.name)
        if rank is not None:
            await self.say(
                executor.PlanPrepared(
                    migration=plan.id,
                    machine=self.name,
                    rank=rank,
                    epoch=plan.epoch,
                    prepare_s=0.01,
                )
            )
            if self.auto_switch:
                await self._switch(plan)

    async def _switch(self, plan: Plan) -> None:
        rank = plan.membership.slot_of_machine(self.name)
        if rank is None:
            return
        about = {"migration": plan.id, "machine": self.name, "rank": rank, "epoch": plan.epoch}
        await self.say(executor.PlanSwitched(**about, step=5, phases_s={"links": 0.001}))
        self.membership = plan.membership
        await self.say(executor.PlanCommitted(**about, step=5))


class Cluster:
    """Agents and services, and what was said on the bus."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.broker = MemoryBroker()
        self.group = group
        self.agents: dict[str, FakeAgent] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.facts: list[Frozen] = []
        self._heard = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()

    async def bus(self) -> MemoryBus:
        return await self._stack.enter_async_context(MemoryBus(self.broker))

    async def start(self, *names: str, nnodes: tuple[int, int] = (3, 4)) -> None:
        for name in names:
            self.agents[name] = agent = FakeAgent(await self.bus(), name, nnodes=nnodes)
            self.tasks[name] = self.group.create_task(agent.run(), name=name)

    async def start_service(self, name: str) -> None:
        bus = await self.bus()
        service = (
            Planner(bus, job=JOB)
            if name == "planner"
            else DetectorService(bus, job=JOB, detectors=load())
        )
        self.tasks[name] = self.group.create_task(service.run(), name=name)

    async def kill(self, name: str) -> None:
        task = self.tasks.pop(name)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def listen(self) -> None:
        async for delivery in (await self.bus()).events(JOB):
            self.facts.append(delivery.payload.payload)
            self._heard.set()

    async def until(self, kind: type[Frozen], count: int = 1, *, timeout_s: float = 60.0) -> Frozen:
        async with asyncio.timeout(timeout_s):
            while len(found := [f for f in self.facts if isinstance(f, kind)]) < count:
                self._heard.clear()
                await self._heard.wait()
        return found[count - 1]

    async def heard(self, name: str) -> None:
        """Wait for a sign of life; the detector hears it too."""
        async with asyncio.timeout(60):
            async for sender, _ in (await self.bus()).telemetry(JOB):
                if sender == name:
                    return

    async def close(self) -> None:
        for name in list(self.tasks):
            await self.kill(name)
        await self._stack.aclose()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with asyncio.TaskGroup() as group:
        one = Cluster(group)
        await (await one.bus()).setup()
        one.tasks["listener"] = group.create_task(one.listen())
        await one.start_service("planner")
        await one.start_service("detector")
        await one.start("w-0", "w-1", "w-2", "w-3")
        await one.until(JobFormed)
        await one.until(machine.MachineReady, 3)
        await one.until(executor.JobLayoutKnown, 3)
        try:
            yield one
        finally:
            await one.close()


async def ask(cluster: Cluster, verb: str, body: Frozen) -> dict[str, object]:
    return json.loads(await (await cluster.bus()).request(JOB, verb, body))


async def finish(cluster: Cluster, membership: Membership) -> None:
    for rank in range(3):
        name = membership.machine_of(rank)
        await cluster.agents[name].say(
            executor.WorkerFinished(machine=name, rank=rank, epoch=membership.epoch, step=9)
        )
    await cluster.until(JobFinished)


async def test_a_planned_move_and_the_end(cluster):
    reply = await ask(cluster, "migrate", MigrateRequest(machine="w-1"))
    assert reply["ok"], reply
    committed = await cluster.until(MigrationCommitted)
    assert committed.membership.machine_of(1) == "w-3"
    await cluster.until(machine.MachineReady, 6)
    assert cluster.agents["w-1"].log == ["start", "prepare", "release", "warm"]
    status = await ask(cluster, "status", StatusRequest())
    assert (status["epoch"], status["standbys"]) == (2, ["w-1"])

    await finish(cluster, committed.membership)
    async with asyncio.timeout(60):
        for name in ("w-0", "w-1", "w-2", "w-3"):
            await cluster.tasks.pop(name)
    assert all(agent.log[-1] == "stop" for agent in cluster.agents.values())

    bus = await cluster.bus()
    stored = await bus.get("tm_migrations", f"{JOB}.m-0001")
    assert json.loads(stored.value)["phase"] == "committed"
    stored = await bus.get("tm_jobs", JOB)
    assert json.loads(stored.value)["phase"] == "finished"


async def test_a_crash_is_recovered_before_anybody_could_notice_silence(cluster):
    agent = cluster.agents["w-1"]
    await cluster.kill("w-1")
    began_s = time.monotonic()
    await agent.say(
        machine.WorkerExited(machine="w-1", generation=0, rank=1, epoch=1, exit_code=None, signal=9)
    )
    committed = await cluster.until(MigrationCommitted)
    assert committed.kind == "failure"
    assert committed.membership.machine_of(1) == "w-3"
    late_s = max(cluster.agents[n].recovering_at_s for n in ("w-0", "w-2", "w-3")) - began_s
    assert late_s < 0.9, f"the last machine heard of it after {late_s * 1e3:.1f} ms"
    await finish(cluster, committed.membership)


async def test_a_silent_machine_is_replaced(cluster):
    await cluster.heard("w-2")
    await cluster.kill("w-2")
    committed = await cluster.until(MigrationCommitted)
    assert committed.leaver == "w-2"
    assert committed.membership.machine_of(2) == "w-3"


async def test_the_planner_dies_in_the_middle_of_a_move(cluster):
    for agent in cluster.agents.values():
        agent.auto_switch = False
    await ask(cluster, "migrate", MigrateRequest(machine="w-1"))
    plan = (await cluster.until(MigrationApproved)).plan
    await cluster.until(MigrationPreparing)
    await cluster.kill("planner")
    for name in ("w-0", "w-2", "w-3"):
        await cluster.agents[name]._switch(plan)
    await cluster.start_service("planner")
    committed = await cluster.until(MigrationCommitted)
    assert committed.membership == plan.membership
    await cluster.until(machine.MachineReady, 6)
    assert "release" in cluster.agents["w-1"].log


async def test_both_services_die_and_a_machine_with_them(cluster):
    await cluster.kill("planner")
    await cluster.kill("detector")
    agent = cluster.agents["w-1"]
    await cluster.kill("w-1")
    await agent.say(
        machine.WorkerExited(machine="w-1", generation=0, rank=1, epoch=1, exit_code=None, signal=9)
    )
    await cluster.start_service("detector")
    await cluster.start_service("planner")
    committed = await cluster.until(MigrationCommitted)
    assert committed.membership.machine_of(1) == "w-3"
    assert committed.epoch > 2, "epochs of the lost planner are skipped"


async def test_a_bus_outage_is_not_a_death(cluster):
    cluster.broker.reachable = False
    await asyncio.sleep(1.5)
    cluster.broker.reachable = True
    reply = await ask(cluster, "migrate", MigrateRequest(machine="w-0", dry_run=True))
    assert reply["ok"], reply
    assert not [f for f in cluster.facts if isinstance(f, MigrationApproved)]


async def test_an_event_that_the_core_cannot_take_is_set_aside(cluster, monkeypatch):
    """Live, and when it is read again: it is stored, and would end each planner that starts."""
    record = planner_core.record

    def fragile(transition, fact):
        if isinstance(fact.payload, machine.LinkLost):
            raise IndexError("tuple index out of range")
        record(transition, fact)

    monkeypatch.setattr(planner_core, "record", fragile)
    lost = machine.LinkLost(
        machine="w-0", rank=0, peer_rank=1, peer_machine="w-1", epoch=1, step=1, kind="refused"
    )
    await cluster.agents["w-0"].say(lost)
    assert (await ask(cluster, "migrate", MigrateRequest(machine="w-0", dry_run=True)))["ok"]
    await cluster.kill("planner")
    await cluster.start_service("planner")
    await cluster.heard("w-2")
    await cluster.kill("w-2")
    committed = await cluster.until(MigrationCommitted)
    assert committed.leaver == "w-2"


async def test_thousands_of_facts_do_not_keep_the_detector_from_hearing():
    heard = 0

    async def hear() -> None:
        nonlocal heard
        while True:
            heard += 1
            await asyncio.sleep(0)

    async with MemoryBus(MemoryBroker()) as bus:
        service = DetectorService(bus, job=JOB, detectors=[])
        for rank in range(1000):
            broken = executor.StepBroken(
                machine="w-0", rank=rank, epoch=1, committed_step=1, reason="reset"
            )
            event = observe.new_event(job=JOB, source="/machine/w-0", payload=broken)
            service._facts.put_nowait(event)
        tasks = [asyncio.create_task(one) for one in (service._judge_facts(), hear())]
        async with asyncio.timeout(60):
            while not service._facts.empty():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0)
        assert heard >= 50
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Stepping(datetime):
    """A clock that is an hour off, now ahead and now behind."""

    _steps = itertools.count()

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(hours=1 if next(cls._steps) % 2 else -1)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_clocks_that_step_by_hours_change_no_decision(cluster, monkeypatch, hours):
    """All facts are dated by a clock that steps, and the services' own did while they were away."""
    monkeypatch.setattr(observe, "datetime", Stepping)
    reply = await ask(cluster, "migrate", MigrateRequest(machine="w-0"))
    assert reply["ok"], reply
    await cluster.until(MigrationCommitted)
    await cluster.until(machine.MachineReady, 6)
    await cluster.kill("planner")
    await cluster.kill("detector")
    off_s = time.time() - time.monotonic() + 3600 * hours
    monkeypatch.setattr(planner_service, "steady_clock", lambda: lambda: time.monotonic() + off_s)
    await cluster.start_service("detector")
    await cluster.start_service("planner")
    await cluster.heard("w-2")
    await cluster.kill("w-2")
    committed = await cluster.until(MigrationCommitted, 2)
    assert committed.leaver == "w-2"
    assert committed.membership.machine_of(2) == "w-0"
    approved = [fact for fact in cluster.facts if isinstance(fact, MigrationApproved)]
    assert len(approved) == 2, "what was over was not decided anew"


async def test_machines_whose_clocks_are_an_hour_ahead_delay_nothing():
    broker = MemoryBroker()
    async with MemoryBus(broker) as bus, asyncio.timeout(60), asyncio.TaskGroup() as group:
        ahead = datetime.now(UTC) + timedelta(hours=1)
        for number in range(2):
            me = Machine(name=f"w-{number}", generation=0, endpoints=("h:1",))
            fact = machine.MachineRegistered(
                machine=me, nnodes_min=2, nnodes_max=3, pid=1, host="h"
            )
            event = observe.new_event(job=JOB, source=f"/machine/{me.name}", payload=fact)
            await bus.publish(replace(event, time=ahead))
        planner = Planner(bus, job=JOB, policy=PolicyFiles(options={"form_quiet_s": 0.2}))
        running = group.create_task(planner.run())
        async for delivery in bus.events(JOB):
            if isinstance(delivery.payload.payload, JobFormed):
                break
        running.cancel()
