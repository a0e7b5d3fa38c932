"""What one key can store, and say: bounded, and never at the cost of what others stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from nats.js.api import StreamConfig
from nats.js.errors import APIError
from tests.security.conftest import JOB, Secured

from trainmover import subjects
from trainmover.bus import streams
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.protocol import TELEMETRY_BYTES
from trainmover.errors import BusError, BusUnavailableError, PermissionDeniedError
from trainmover.tracing.seldom import Seldom


@pytest.fixture
async def admin(nats_url: str) -> AsyncIterator[NatsBus]:
    async with NatsBus(nats_url) as bus:
        await bus.setup()
        yield bus


async def test_everything_that_is_stored_has_limits(admin: NatsBus) -> None:
    for wanted in streams.stream_configs():
        config = (await admin.client.jetstream().stream_info(wanted.name or "")).config
        assert (config.max_bytes or -1) > 0, config.name
        assert (config.max_msg_size or -1) > 0, config.name
        if not (config.name or "").startswith("KV_"):
            assert 0 < (config.max_consumers or -1) < 100_000, config.name
    assert sum(config.max_bytes or 0 for config in streams.stream_configs()) < 2 * 1024**3


async def test_what_is_too_large_pushes_nothing_out(admin: NatsBus) -> None:
    with pytest.raises(APIError, match="maximum"):
        await admin.client.jetstream().publish("tm.v1.demo.machine.lost", b"x" * 5 * 1024**2)


async def test_the_commands_of_a_machine_that_takes_none_leave_room(admin: NatsBus) -> None:
    context = admin.client.jetstream()
    await context.publish("tm.v1.demo.cmd.other", b"kept")
    for _ in range(1100):
        await admin.client.publish("tm.v1.demo.cmd.silent", b"x")
    await context.publish("tm.v1.demo.cmd.silent", b"a round trip behind them")
    info = await context.stream_info(subjects.COMMAND_STREAM, subjects_filter=">")
    assert info.state.subjects == {"tm.v1.demo.cmd.other": 1, "tm.v1.demo.cmd.silent": 1000}


async def test_a_machine_has_one_small_key_and_cannot_fill_the_bucket(secured: Secured) -> None:
    """What is full takes nothing more, also from the others."""
    async with secured.bus("machine-node-0") as bus:
        with pytest.raises(BusError, match="maximum"):
            await bus.put("tm_machines", f"{JOB}.node-0.generation", b"1" * 4096, revision=None)
        with pytest.raises(PermissionDeniedError):
            await bus.put("tm_machines", f"{JOB}.node-0.more", b"1", revision=None)


@pytest.mark.parametrize("who", ["detector", "machine-node-0", "planner"])
@pytest.mark.parametrize("rollup", ["all", "sub"])
async def test_no_header_empties_a_bucket(secured: Secured, who: str, rollup: str) -> None:
    """``Nats-Rollup: all`` with the detector's key purged all jobs' records."""
    key = {
        "detector": f"$KV.tm_jobs.{JOB}.detector-lease",
        "machine-node-0": f"$KV.tm_machines.{JOB}.node-0.generation",
        "planner": f"$KV.tm_jobs.{JOB}.x",
    }[who]
    async with secured.bus("admin") as admin, secured.bus(who) as bus:
        context = admin.client.jetstream()
        for bucket in streams.BUCKETS:
            await context.publish(f"$KV.{bucket}.bert.kept", b"1")
        with pytest.raises(APIError, match="rollup"):
            await bus.client.jetstream().publish(key, b"", headers={"Nats-Rollup": rollup})
        for bucket in streams.BUCKETS:
            assert await admin.get(bucket, "bert.kept") is not None


async def test_setup_forbids_it_on_a_bus_of_an_older_version(nats_url: str) -> None:
    async with NatsBus(nats_url) as bus:
        context = bus.client.jetstream()
        old = StreamConfig(
            name="KV_tm_jobs",
            subjects=["$KV.tm_jobs.>"],
            max_msgs_per_subject=8,
            allow_rollup_hdrs=True,
        )
        await context.add_stream(old)
        await bus.put("tm_jobs", "demo", b"1", revision=None)
        await bus.setup()
        config = (await context.stream_info("KV_tm_jobs")).config
        assert not config.allow_rollup_hdrs
        assert (config.max_bytes or -1) > 0
        assert await bus.get("tm_jobs", "demo") is not None


async def answered(bus: NatsBus) -> None:
    """Wait until the server has taken all that was sent, however busy the host is."""
    while True:
        with contextlib.suppress(BusUnavailableError):
            return await bus.ping()


async def test_a_slow_reader_of_telemetry_keeps_a_bounded_number_of_bytes(admin: NatsBus) -> None:
    batch = b"x" * 7 * 1024**2
    reading = admin.telemetry("demo")
    first = None
    async with NatsBus(admin.url) as sender:
        waiting = asyncio.ensure_future(anext(reading))
        while not waiting.done():
            await sender.send_telemetry("demo", "w", b"begin")
            await asyncio.sleep(0.05)
        first = waiting.result()
        for _ in range(20):
            await sender.send_telemetry("demo", "w", batch)
            await answered(sender)
        await answered(admin)
        (queue,) = admin._queues
        held = [message for message in queue._queue if message is not None]  # type: ignore[attr-defined]
    assert first == ("w", b"begin")
    assert 0 < sum(len(message.data) for message in held) <= TELEMETRY_BYTES


def test_warnings_about_what_others_send_are_few_and_counted() -> None:
    now_s = 0.0
    said: list[dict[str, object]] = []
    warn = Seldom(lambda event, **more: said.append(more), each=3, clock=lambda: now_s)
    for number in range(100):
        warn("bus.dead_letter", number=number)
    assert [each["number"] for each in said] == [0, 1, 2]
    now_s = 11.0
    warn("bus.dead_letter", number=100)
    assert said[-1] == {"number": 100, "kept_back": 97}
