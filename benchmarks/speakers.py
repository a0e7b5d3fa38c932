"""Machines that only speak: what agents say to the bus, at their rates, with nothing behind it.

Each has a durable queue of commands and a reader of the job's facts of its own, as an agent has;
messages and their rates are an agent's. They answer commands at once, so what is measured of
planner, detector and bus is their own.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import secrets
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from nats.js.api import Header

from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import (
    AbortMigration,
    BreakStep,
    Command,
    Prepare,
    Recover,
    Release,
    Start,
    Stop,
    Warm,
)
from trainmover.events import executor, machine, type_of
from trainmover.events.catalog import EventType
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Machine, Membership
from trainmover.telemetry.records import (
    PULSE,
    RECORD,
    STEP,
    Batch,
    Flag,
    Phase,
    Sections,
    encode_batch,
)
from trainmover_executor.agent.incarnation import take_generation
from trainmover_executor.agent.telemetry import period_of

RANKS: Final = 8
"""Of each machine."""
_OPS_PER_STEP: Final = 6
WARM: Final = 64
"""Slots that a standby keeps warm."""
_JOINING: Final = asyncio.Semaphore(32)
_NOBODY: Final = "scale.acknowledged"
"""Where acknowledgements go, and nobody listens."""


@functools.cache
def _attributes(kind: EventType, job: str) -> dict[str, str]:
    """Headers that all facts of a kind have."""
    return {
        "ce-specversion": "1.0",
        "ce-type": kind.type,
        "ce-subject": job,
        "ce-datacontenttype": "application/json",
        "ce-dataschema": kind.schema,
    }


@dataclass(frozen=True, slots=True)
class Cast:
    """Who speaks in one process.

    Attributes:
        sharing: So many machines share a connection; an agent has its own, but thousands of them
            spend more in system calls than a small host has.
    """

    job: str
    url: str
    nnodes: tuple[int, int]
    names: tuple[str, ...]
    sharing: int = 1
    ranks: int = RANKS


class Speaker:
    """One machine.

    Args:
        cast: Whose job it is.
        name: Its name.
    """

    def __init__(self, cast: Cast, name: str) -> None:
        self.name = name
        self._cast = cast
        self.generation = 0
        self._said: asyncio.Queue[Frozen] = asyncio.Queue()
        self._membership: Membership | None = None
        self._plan: Plan | None = None
        self._trains = self._warm = False
        self._epoch = self._step = 0
        self._period_s = period_of(cast.nnodes[1])

    @property
    def ranks(self) -> range:
        """What it computes; empty while it is a standby."""
        membership = self._membership
        slot = None if membership is None else membership.slot_of_machine(self.name)
        return range(0) if membership is None or slot is None else membership.layout.ranks_of(slot)

    async def run(self, bus: NatsBus) -> None:
        """Speak until cancelled or stopped."""
        async with _JOINING:
            self.generation = await take_generation(bus, job=self._cast.job, machine=self.name)
        async with asyncio.TaskGroup() as group:
            speech = (self._speak(bus), self._tell(bus), self._progress(), self._watch(bus))
            helpers = [group.create_task(each) for each in speech]
            self.register()
            await self._obey(bus)
            for helper in helpers:
                helper.cancel()

    # -- what it says ----------------------------------------------------------------------------

    def say(self, fact: Frozen) -> None:
        """Queue a fact."""
        self._said.put_nowait(fact)

    async def _speak(self, bus: NatsBus) -> None:
        """Publish what is queued as an agent does, but wait for no acknowledgement.

        The bus stores and acknowledges all the same; waiting would cost more than everything else.
        """
        run, source = secrets.token_hex(8), f"/machine/{self.name}"
        for number in itertools.count(1):
            fact = await self._said.get()
            kind = type_of(fact)
            id = f"{run}-{number}"
            headers = {
                **_attributes(kind, self._cast.job),
                "ce-id": id,
                "ce-source": source,
                "ce-time": f"{datetime.now(UTC).isoformat()[:-6]}Z",
                "ce-sequence": f"{run}.{number:012d}",
                Header.MSG_ID: f"{source}#{id}",
            }
            if kind.kept_s is not None:
                headers[Header.MSG_TTL] = str(kind.kept_s)
            subject = kind.subject(self._cast.job, machine=self.name)
            body = fact.model_dump_json().encode()
            await bus.client.publish(subject, body, reply=_NOBODY, headers=headers)

    def _endpoints(self, base: int) -> tuple[str, ...]:
        return tuple(
            f"{self.name}.cluster.local:{base + local}" for local in range(self._cast.ranks)
        )

    def register(self) -> None:
        """Offer itself to the job."""
        low, high = self._cast.nnodes
        me = Machine(name=self.name, generation=self.generation, endpoints=self._endpoints(9_000))
        self.say(
            machine.MachineRegistered(
                machine=me, nnodes_min=low, nnodes_max=high, pid=os.getpid(), host=self.name
            )
        )

    async def _progress(self) -> None:
        await asyncio.sleep(random.random())
        while True:
            await asyncio.sleep(1.0)
            if self._trains and self.ranks:
                self._step += 1
                self.say(
                    executor.StepProgress(
                        machine=self.name,
                        rank=self.ranks[0],
                        epoch=self._epoch,
                        step=self._step,
                        step_s=1.0,
                        loss=2.0,
                    )
                )

    async def _tell(self, bus: NatsBus) -> None:
        await asyncio.sleep(self._period_s * random.random())
        said = 0
        while True:
            await asyncio.sleep(self._period_s)
            await bus.send_telemetry(
                self._cast.job, self.name, self.batch(stepped=self._step > said)
            )
            said = self._step

    def batch(self, *, stepped: bool) -> bytes:
        """A batch of telemetry, of one step or none."""
        ranks = np.arange(self.ranks.start, self.ranks.stop)
        pulses = np.zeros(len(ranks), PULSE)
        pulses["rank"], pulses["step"] = ranks, self._step + 1
        pulses["phase"] = Phase.BODY if self._trains else Phase.MOVING
        if not (stepped and self._trains):
            return self._encoded(np.zeros(0, RECORD), Sections(pulses=pulses))
        records = np.zeros((len(ranks), _OPS_PER_STEP), RECORD)
        records["rank"], records["step"], records["peer"] = ranks[:, None], self._step, -1
        records["sequence"] = self._step * _OPS_PER_STEP + np.arange(_OPS_PER_STEP)
        records["duration_ns"] = 20_000_000
        steps = np.zeros(len(ranks), STEP)
        steps["rank"], steps["step"], steps["duration_ns"] = ranks, self._step, 10**9
        steps["wait_ns"] = 120_000_000
        steps["flags"], steps["loss"], steps["checksum"] = Flag.LOSS | Flag.CHECKSUM, 2.0, 7
        return self._encoded(records.reshape(-1), Sections(steps=steps, pulses=pulses))

    def _encoded(self, records: Any, more: Sections) -> bytes:
        epoch, job = self._epoch, self._cast.job
        return encode_batch(Batch(job, self.name, self.generation, epoch, records, more=more))

    # -- what it is told -------------------------------------------------------------------------

    async def _watch(self, bus: NatsBus) -> None:
        async for _ in bus.events(self._cast.job, entity="job", from_start=False):
            pass

    async def _obey(self, bus: NatsBus) -> None:
        async with aclosing(bus.commands(self._cast.job, self.name)) as commands:
            async for delivery in commands:
                stop = self.take(delivery.payload)
                await delivery.ack()
                if stop:
                    return

    def take(self, command: Command) -> bool:
        """Do what is said; whether this machine ends."""
        match command:
            case Start(membership=membership, generation=generation):
                if generation == self.generation and self._membership is None:
                    self._sit(membership)
            case Warm(slots=slots, generation=generation):
                if generation == self.generation and not self._warm:
                    self._get_warm(slots)
            case Release(generation=generation, then=then) if generation == self.generation:
                if then == "stop":
                    return True
                self._start_over()
            case Stop():
                return True
            case _:
                self._take_plan(command)
        return False

    def _take_plan(self, command: Command) -> None:
        match command:
            case Prepare(plan=plan):
                self._prepare(plan)
            case Recover(plan=plan):
                self._switch(plan)
            case AbortMigration():
                self._plan = None
            case BreakStep(epoch=epoch):
                self.break_off(epoch)
            case _:
                pass

    def _sit(self, membership: Membership) -> None:
        self._membership, self._epoch, self._trains = membership, membership.epoch, True
        world = membership.layout.world_size
        for rank in self.ranks:
            alike = executor.Span.of(sorted((rank, (rank + world // 2) % world)))
            self.say(executor.JobLayoutKnown(machine=self.name, rank=rank, alike=alike))

    def _get_warm(self, slots: tuple[int, ...]) -> None:
        self._warm = True
        told = {"machine": self.name, "generation": self.generation}
        ports = {slot: self._endpoints(10_000 + self._cast.ranks * slot % 50_000) for slot in slots}
        self.say(machine.MachineWarming(endpoints=ports, **told))
        for slot in slots[:WARM]:
            ready = machine.MachineReady(slot=slot, shadow_iterations=3, warm_s=1.0, **told)
            self.say(ready)

    def _start_over(self) -> None:
        self.generation += 1
        self._membership, self._plan = None, None
        self._trains = self._warm = False
        self.register()

    def _of_rank(self, plan: Plan, rank: int) -> dict[str, Any]:
        return {"migration": plan.id, "machine": self.name, "rank": rank, "epoch": plan.epoch}

    def _ranks_at(self, membership: Membership) -> range:
        slot = membership.slot_of_machine(self.name)
        return range(0) if slot is None else membership.layout.ranks_of(slot)

    def _prepare(self, plan: Plan) -> None:
        if plan.epoch <= self._epoch or self._plan == plan:
            return
        self._plan = plan
        for rank in self.ranks or self._ranks_at(plan.membership):
            self.say(executor.PlanPrepared(prepare_s=0.1, **self._of_rank(plan, rank)))

    def ready(self, migration: str) -> None:
        """All ranks are prepared: they vote, and switch."""
        if self._plan is not None and self._plan.id == migration:
            self._switch(self._plan)

    def _switch(self, plan: Plan) -> None:
        if plan.epoch <= self._epoch:
            return
        leaves = bool(self.ranks) and not self._ranks_at(plan.membership)
        self._membership, self._epoch, self._plan = plan.membership, plan.epoch, None
        self._trains = not leaves
        for rank in self.ranks:
            of_rank = self._of_rank(plan, rank)
            phases = {"links": 0.05, "state": 0.1}
            self.say(executor.PlanSwitched(step=self._step, phases_s=phases, **of_rank))
        for rank in self.ranks:
            self.say(executor.PlanCommitted(step=self._step + 1, **self._of_rank(plan, rank)))

    def break_off(self, epoch: int | None = None) -> None:
        """A peer is gone: the step of every rank breaks."""
        if not self._trains or (epoch is not None and epoch != self._epoch):
            return
        self._trains = False
        for rank in self.ranks:
            broken = executor.StepBroken(
                machine=self.name,
                rank=rank,
                epoch=self._epoch,
                committed_step=self._step,
                reason="a link was reset",
            )
            self.say(broken)

    def lost(self, name: str) -> None:
        """Another machine ended: its neighbours see their links end, all others the step's."""
        membership = self._membership
        slot = None if membership is None else membership.slot_of_machine(name)
        if membership is None or slot is None or not self.ranks:
            return
        mine, slots = membership.layout.slot_of(self.ranks[0]), membership.layout.slots
        if (mine - slot) % slots in (1, slots - 1):
            lost = machine.LinkLost(
                machine=self.name,
                rank=self.ranks[0],
                peer_rank=membership.layout.ranks_of(slot)[0],
                peer_machine=name,
                epoch=self._epoch,
                step=self._step,
                kind="reset",
            )
            self.say(lost)
        asyncio.get_running_loop().call_later(0.2 * random.random(), self.break_off, self._epoch)
