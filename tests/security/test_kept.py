"""Whoever fills the stream of facts pushes out nothing that a planner resumes from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.security.conftest import JOB, Secured
from tests.unit import factories as make

from trainmover import subjects
from trainmover.bus.facts import history
from trainmover.bus.kept import KEPT, origin
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import stream_configs
from trainmover.events.catalog import CATALOG
from trainmover.events.machine import MachineLost
from trainmover.events.migration import JobFormed
from trainmover.job.topology import Frozen
from trainmover.tracing.observe import new_event
from trainmover_planner import core
from trainmover_planner.state.effects import Fact

_MACHINES = ("node-0", "node-1")
_SMALL = 256 * 1024


@pytest.fixture
async def small(nats_url: str) -> AsyncIterator[NatsBus]:
    """A bus whose stream of facts is full soon."""
    async with NatsBus(nats_url) as bus:
        await bus.setup()
        context = bus.client.jetstream()
        facts = (await context.stream_info(subjects.EVENT_STREAM)).config
        await context.update_stream(facts.evolve(max_bytes=_SMALL))
        yield bus


async def say(bus: NatsBus, *facts: Frozen, job: str = "demo") -> None:
    for fact in facts:
        await bus.publish(new_event(job=job, source=make.source_of(fact), payload=fact))


async def flood(bus: NatsBus, subject: str, *, data: bytes = b"x" * 1024) -> None:
    """Push out everything that was there before."""
    for _ in range(_SMALL // len(data) + 16):
        await bus.client.publish(subject, data)
    await bus.client.jetstream().publish(subject, data)  # a round trip behind them


async def copied(bus: NatsBus, count: int) -> None:
    """Wait until the server has made its copies."""
    async with asyncio.timeout(10):
        while True:
            infos = [await bus.client.jetstream().stream_info(kept.stream) for kept in KEPT]
            if sum(info.state.messages for info in infos) >= count:
                return
            await asyncio.sleep(0.02)


async def copied_until(bus: NatsBus, sequence: int, subject: str) -> None:
    """Wait until the fact of this sequence and subject is copied."""
    async with asyncio.timeout(30):
        while True:
            newest = await bus.client.jetstream().get_last_msg("TM_MACHINES", subject)
            source = origin(newest.headers)
            if source is not None and source[1] >= sequence:
                return
            await asyncio.sleep(0.02)


def lost(name: str) -> MachineLost:
    return MachineLost(machine=name, reason="")


def formed() -> JobFormed:
    return JobFormed(membership=make.membership_of(*_MACHINES))


async def test_a_flood_does_not_push_out_what_the_planner_resumes_from(small: NatsBus) -> None:
    said = [*(make.registered(name) for name in _MACHINES), formed()]
    await say(small, *said)
    await copied(small, 3)
    await flood(small, "tm.v1.demo.step.broken.node-1")
    assert (await small.client.jetstream().stream_info(subjects.EVENT_STREAM)).state.first_seq > 3
    found = await history(small, "demo")
    assert [event.payload for event in found] == said
    state = core.initial("demo")
    for event in found:
        state = core.fold(state, Fact(event.payload, event.source, event.id, event.trace), 0.0)
    assert state.membership == formed().membership
    assert {host.machine.name for host in state.inventory.sorted()} == set(_MACHINES)


async def test_the_order_is_that_of_all_facts_and_nothing_comes_twice(small: NatsBus) -> None:
    """Some were pushed out and some were not; copies of both are kept."""
    await say(small, make.registered("node-0"), formed(), make.registered("node-1"))
    await copied(small, 3)
    await flood(small, "tm.v1.other.step.broken.node-1")
    late = [make.registered("node-2"), lost("node-1")]
    await say(small, *late)
    await copied(small, 5)
    sequences: list[int] = []
    async with asyncio.timeout(10):
        async for delivery in small.events("demo"):
            sequences.append(delivery.stream_sequence)
            if len(sequences) == 5:
                break
    assert sequences == sorted(set(sequences))
    found = await history(small, "demo")
    assert [event.payload for event in found][3:] == late
    assert await history(small, "another") == []


async def test_who_fills_the_copies_pushes_out_its_own(small: NatsBus) -> None:
    await say(small, make.registered("node-0"), make.registered("node-1"))
    await copied(small, 2)
    subject = "tm.v1.demo.machine.registered.node-1"
    for _ in range(300):
        await small.client.publish(subject, b"x" * 1024)
    await flood(small, subject)
    context = small.client.jetstream()
    facts = await context.stream_info(subjects.EVENT_STREAM)
    await copied_until(small, facts.state.last_seq, subject)
    info = await context.stream_info("TM_MACHINES", subjects_filter=">")
    assert info.state.subjects == {"tm.v1.demo.machine.registered.node-0": 1, subject: 4}
    found = await history(small, "demo")
    assert [event.payload for event in found] == [make.registered("node-0")]


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-TTL": "1h"},
        {"nats-stream-source": "TM_EVENTS 1 > > x y"},
        {"Nats-Expected-Stream": "TM_EVENTS"},
        {"Nats-Msg-Id": "x"},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_no_fact_holds_up_the_copies(small: NatsBus, headers: dict[str, str]) -> None:
    """A copy that the server cannot store is tried again for ever."""
    context = small.client.jetstream()
    facts = next(each for each in stream_configs() if each.name == subjects.EVENT_STREAM)
    await context.update_stream(facts)
    subject = "tm.v1.demo.machine.registered.node-1"
    room = facts.max_msg_size - sum(len(f"{k}: {v}\r\n") for k, v in headers.items()) - 12
    await context.publish(subject, b"x" * room, headers=headers)
    with pytest.raises(Exception, match="maximum"):
        await context.publish(subject, b"x" * (room + 1), headers=headers)
    await say(small, make.registered("node-0"))
    await copied(small, 2)
    assert [event.payload for event in await history(small, "demo")] == [make.registered("node-0")]


def test_every_fact_of_the_planner_is_kept_and_only_known_ones_are() -> None:
    names = [name for kept in KEPT for name in kept.names]
    known = {kind.name: kind for kind in CATALOG.values()}
    assert len(names) == len(set(names))
    assert set(names) <= known.keys()
    assert {name for name, kind in known.items() if kind.by == "planner"} <= set(names)
    assert all(known[name].kept_s is None for name in names)


async def test_whoever_may_read_facts_reads_what_was_pushed_out(secured: Secured) -> None:
    async with secured.bus("admin") as admin, secured.bus("planner") as planner:
        await say(planner, formed(), job=JOB)
        await copied(admin, 1)
        context = admin.client.jetstream()
        await context.purge_stream(subjects.EVENT_STREAM)
        for who in ("planner", "detector", "operator", "ops"):
            async with secured.bus(who) as bus:
                await say(planner, lost(who), job=JOB)
                found = await history(bus, JOB)
            assert found[0].payload == formed()
            assert found[-1].payload == lost(who)


async def test_setup_copies_what_an_older_bus_holds(nats_url: str) -> None:
    async with NatsBus(nats_url) as bus:
        context = bus.client.jetstream()
        await context.add_stream(
            next(each for each in stream_configs() if each.name == subjects.EVENT_STREAM)
        )
        await say(bus, make.registered("node-0"), formed())
        await bus.setup()
        await copied(bus, 2)
        await bus.setup()
