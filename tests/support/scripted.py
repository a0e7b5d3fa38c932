"""A job of scripted machines around real planners and detectors on a real bus.

The machines compute nothing, but they refuse what an earlier planner says as the real agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.protocol import Bus
from trainmover.commands import Command, MigrateRequest, Refusal, RequestAccepted, Start, Warm
from trainmover.errors import BusUnavailableError
from trainmover.events import executor, machine
from trainmover.events.envelope import Envelope
from trainmover.events.incident import IncidentOpened
from trainmover.events.migration import JobFormed, MigrationApproved, MigrationPreparing
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Machine, Membership
from trainmover.protocol.replies import parse
from trainmover.tracing import observe

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
        """Publish a fact, as long as it takes."""
        event = observe.new_event(job=JOB, source=f"/machine/{self.name}", payload=payload)
        while True:
            with contextlib.suppress(BusUnavailableError):  # the same id again: stored once
                await self.bus.publish(event)
                return
            await asyncio.sleep(0.05)

    async def run(self) -> None:
        me = Machine(name=self.name, generation=0, endpoints=(f"{self.name}:1",))
        await self.say(
            machine.MachineRegistered(machine=me, nnodes_min=3, nnodes_max=5, pid=1, host="h")
        )
        async for delivery in self.bus.commands(JOB, self.name):
            command = delivery.payload
            self.heard.append(command)
            if command.term >= self.term:  # as trainmover_executor.agent.core.core does
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
        async with asyncio.timeout(20):
            while isinstance(reply := await self._ask_to_move(name), Refusal):
                # The planner reads the facts at its own pace: it may know of no standby yet.
                assert reply.code in {"no_standby", "standby_not_ready"}, reply
                await asyncio.sleep(0.05)
        await self.until(MigrationPreparing, count=before + 1)
        approved = await self.until(MigrationApproved, count=before + 1)
        assert isinstance(approved, MigrationApproved)
        return approved.plan

    async def _ask_to_move(self, name: str) -> Refusal | RequestAccepted:
        return parse(await self.bus.request(JOB, "migrate", MigrateRequest(machine=name)))

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


@contextlib.asynccontextmanager
async def replicas() -> AsyncIterator[Starter]:
    """Start replicas of services, which end with the context."""
    started: list[Replica] = []

    async def start(service: str, url: str, **options: float) -> Replica:
        started.append(await Replica.start(service, url, **options))
        return started[-1]

    try:
        yield start
    finally:
        for replica in started:
            await replica.end()


@contextlib.asynccontextmanager
async def staged(url: str) -> AsyncIterator[Stage]:
    """The machines, connected and listening."""
    async with NatsBus(url, name="test") as bus:
        await bus.setup()
        stage = Stage(url, bus)
        tasks = [asyncio.ensure_future(stage.listen())]
        tasks += [asyncio.ensure_future(one.run()) for one in stage.machines.values()]
        try:
            yield stage
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
