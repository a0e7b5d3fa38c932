"""A pool on a bus that trusts nobody: what its leader's key and its machines' keys are good for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from tests.security.conftest import JOB, Secured

from trainmover.bus.facts import history
from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import Assign, Lead, RequestAccepted, Stop
from trainmover.errors import BusError, PermissionDeniedError
from trainmover.events.machine import (
    MachineLent,
    MachineLost,
    MachineRegistered,
    PoolMachineAssigned,
    PoolMachineRecalled,
    PoolMachineSeen,
)
from trainmover.job.topology import Frozen, Machine
from trainmover.protocol.replies import parse_as
from trainmover.protocol.requests import (
    POOL_LEASE,
    PoolStatus,
    PoolStatusRequest,
    QuarantineRequest,
    ReleaseRequest,
    StandbysRequest,
    StandbysStatus,
)
from trainmover.runtime.lease import Lease
from trainmover.tracing.observe import new_event
from trainmover_pool.service import Pool
from trainmover_pool.sharing_file import SharingFile

POOL = "spares"
FILE = """
jobs:
  gpt: {wanted: 1, agent: --slots 2 -- train.py}
  bert: {wanted: 0, agent: --slots 2 -- train.py}
  out-of-reach: {wanted: 0, agent: --slots 2 -- train.py}
"""


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    file = tmp_path / "pool.yaml"
    file.write_text(FILE)
    return file


class Planner:
    """Answers as the planner of a job that lacks a standby."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self.machines: dict[str, str] = {}

    async def __call__(self, verb: str, body: bytes) -> bytes:
        self.asked.append((verb, body))
        if verb == "standbys":
            status = StandbysStatus.model_validate(
                {"phase": "running", "standbys": len(self.machines), "machines": self.machines}
            )
            return status.model_dump_json().encode()
        return RequestAccepted(migration=None).model_dump_json().encode()


def seen(offer: int, name: str = "spare-0", **changes: object) -> PoolMachineSeen:
    said = {"machine": name, "run": "r", "offer": offer, "phase": "idle"} | changes
    return PoolMachineSeen.model_validate(said)


def lent(kind: type[MachineRegistered], name: str, **more: str) -> MachineRegistered:
    machine = Machine(name=name, generation=0, endpoints=("h:1",))
    return kind(machine=machine, nnodes_min=1, nnodes_max=2, pid=1, host="h", **more)


async def say(bus: NatsBus, fact: Frozen, *, job: str, by: str) -> None:
    await bus.publish(new_event(job=job, source=by, payload=fact))


@asynccontextmanager
async def led(secured: Secured, file: Path) -> AsyncIterator[None]:
    """A pool is led, with the key of its leader."""
    async with secured.bus("pool-spares") as bus:
        lease = Lease(bus, job=POOL, service=POOL_LEASE, ttl_s=2.0)
        leader = Pool(bus, pool=POOL, sharing=SharingFile(file), lease=lease)
        task = asyncio.create_task(leader.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def status_of(bus: NatsBus) -> PoolStatus:
    async with asyncio.timeout(20):
        while True:
            try:
                raw = await bus.request(POOL, "status", PoolStatusRequest())
            except BusError:  # nobody leads yet
                await asyncio.sleep(0.1)
            else:
                return parse_as(PoolStatus, raw)


async def test_a_machine_is_assigned_and_offers_itself(secured: Secured, declared: Path) -> None:
    planner = Planner()
    async with (
        secured.bus("planner") as planners,
        secured.bus("machine-spare-0") as machine,
        secured.bus("ops") as ops,
        asyncio.timeout(60),
    ):
        await planners.serve(JOB, planner)
        async with led(secured, declared):
            assert (await status_of(ops)).pool == POOL
            term = 0
            async with aclosing(machine.commands(POOL, "spare-0")) as orders:
                await say(machine, seen(1), job=POOL, by="/machine/spare-0")
                async for order in orders:
                    await order.ack()
                    command = order.payload
                    term = command.term
                    if isinstance(command, Assign):
                        break
                    assert isinstance(command, Lead)
                    await say(machine, seen(2, term=term), job=POOL, by="/machine/spare-0")
            assert (command.job, command.run, command.offer) == (JOB, "r", 2)
            # Its offer is stored after the word that lets it count, for every job that is known.
            offer = lent(MachineLent, "spare-0", pool=POOL)
            await say(machine, offer, job=JOB, by="/machine/spare-0")
            facts = [event.payload for event in await history(ops, JOB)]
            said = [one for one in facts if isinstance(one, PoolMachineAssigned | MachineLent)]
            assert [type(one) for one in said] == [PoolMachineAssigned, MachineLent]
            elsewhere = [event.payload for event in await history(ops, "bert")]
            assert [one for one in elsewhere if isinstance(one, PoolMachineAssigned)] == said[:1]
            shown = await status_of(ops)
            assert [one.machine for one in shown.machines] == ["spare-0"]
    assert {verb for verb, _ in planner.asked} == {"standbys"}


async def test_it_is_read_when_the_first_facts_are_gone(secured: Secured) -> None:
    """What machines say is kept for seconds: soon the stream does not begin with its first fact."""
    async with (
        secured.bus("admin") as admin,
        secured.bus("pool-spares") as leader,
        secured.bus("machine-spare-1") as machine,
        asyncio.timeout(30),
    ):
        await say(machine, seen(1, "spare-1"), job=POOL, by="/machine/spare-1")
        await admin.client.jetstream().purge_stream("TM_EVENTS")
        await say(machine, seen(2, "spare-1"), job=POOL, by="/machine/spare-1")
        async with aclosing(leader.events(POOL, entity="pool", fact="seen")) as facts:
            fact = (await anext(facts)).payload.payload
    assert isinstance(fact, PoolMachineSeen)
    assert (fact.machine, fact.offer) == ("spare-1", 2)


async def copies(admin: NatsBus) -> int:
    streams = ("TM_ASSIGNMENTS", "TM_MACHINES")
    infos = [await admin.client.jetstream().stream_info(stream) for stream in streams]
    return sum(info.state.messages for info in infos)


async def test_an_assignment_of_months_ago_still_counts(secured: Secured) -> None:
    """A planner that starts over must take the machine that has held a slot since."""
    assigned = PoolMachineAssigned(machine="spare-0", job="bert", reason="r", term=1)
    offer = lent(MachineLent, "spare-0", pool=POOL)
    async with (
        secured.bus("admin") as admin,
        secured.bus("pool-spares") as leader,
        secured.bus("machine-spare-0") as machine,
        secured.bus("planner") as planner,
        asyncio.timeout(30),
    ):
        context, before = admin.client.jetstream(), await copies(admin)
        await say(leader, assigned, job="bert", by="/pool")
        await say(machine, offer, job="bert", by="/machine/spare-0")
        while await copies(admin) < before + 2:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.05)
        await context.purge_stream("TM_EVENTS")
        found = [event.payload for event in await history(planner, "bert")]
    assert [one for one in found if one in (assigned, offer)][-2:] == [assigned, offer]


async def test_the_leaders_key_asks_for_machines_and_for_nothing_else(secured: Secured) -> None:
    planner = Planner()
    async with secured.bus("planner") as planners, secured.bus("pool-spares") as leader:
        await planners.serve(JOB, planner)
        await leader.request(JOB, "standbys", StandbysRequest())
        await leader.request(JOB, "release", ReleaseRequest(machine="spare-0"))
        with pytest.raises(PermissionDeniedError):
            await leader.request(JOB, "quarantine", QuarantineRequest(machine="node-0"))
        with pytest.raises(PermissionDeniedError):
            await leader.send_command(JOB, "node-0", Stop(reason="r"), id="1")
        with pytest.raises(PermissionDeniedError):
            await leader.send_command("others", "m", Lead(term=1), id="1")
        for fact, by in [
            (MachineLost(machine="node-0", reason="r"), "/planner"),
            (lent(MachineLent, "spare-0", pool=POOL), "/machine/spare-0"),
        ]:
            with pytest.raises(PermissionDeniedError):
                await say(leader, fact, job=JOB, by=by)
        with pytest.raises(PermissionDeniedError):
            await history(leader, JOB)
        with pytest.raises(PermissionDeniedError):
            await anext(leader.commands(POOL, "spare-0"))
        with pytest.raises(PermissionDeniedError):
            await Lease(leader, job=JOB, service="planner").acquire()
    assert [verb for verb, _ in planner.asked] == ["standbys", "release"]
    told = json.loads(planner.asked[1][1])
    assert told["machine"] == "spare-0"


async def test_a_machines_key_cannot_assign(secured: Secured) -> None:
    async with secured.bus("machine-spare-0") as machine:
        with pytest.raises(PermissionDeniedError):
            await machine.send_command(POOL, "spare-0", Lead(term=1), id="1")
        for fact in (
            PoolMachineAssigned(machine="spare-0", job=JOB, reason="mine", term=99),
            PoolMachineRecalled(machine="spare-1", job=JOB, reason="mine", term=99),
        ):
            for job in (POOL, JOB):
                with pytest.raises(PermissionDeniedError):
                    await say(machine, fact, job=job, by="/pool")
        with pytest.raises(PermissionDeniedError):
            await machine.request(JOB, "release", ReleaseRequest(machine="node-0"))
        with pytest.raises(PermissionDeniedError):
            await Lease(machine, job=POOL, service=POOL_LEASE).acquire()


async def test_a_machines_key_offers_it_as_one_of_a_pool_alone(secured: Secured) -> None:
    """What would count without its pool's word is refused by the server."""
    async with secured.bus("machine-spare-0") as machine:
        for job in (JOB, "bert"):
            await say(
                machine, lent(MachineLent, "spare-0", pool=POOL), job=job, by="/machine/spare-0"
            )
            own = lent(MachineRegistered, "spare-0")
            with pytest.raises(PermissionDeniedError):
                await say(machine, own, job=job, by="/machine/spare-0")
        other = lent(MachineLent, "spare-1", pool=POOL)
        with pytest.raises(PermissionDeniedError):
            await say(machine, other, job=JOB, by="/machine/spare-1")
        with pytest.raises(PermissionDeniedError):
            await say(machine, seen(1, "spare-1"), job=POOL, by="/machine/spare-1")
    async with secured.bus("machine-node-0") as own_machine:
        with pytest.raises(PermissionDeniedError):
            await say(own_machine, seen(1, "node-0"), job=POOL, by="/machine/node-0")
