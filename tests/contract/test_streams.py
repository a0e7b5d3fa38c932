"""What is stored where on a real server, and how it is upgraded."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import replace

import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from trainmover import subjects
from trainmover.bus import streams
from trainmover.bus.nats import bus as nats_bus
from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import Stop
from trainmover.errors import BusError, ConfigError
from trainmover.events.catalog import CATALOG, EventType, type_of
from trainmover.events.executor import StepProgress
from trainmover.events.machine import MachineLost
from trainmover.testing import collect
from trainmover.tracing.observe import new_event


def covered(subject: str) -> list[str]:
    """Streams that would store ``subject``."""
    return [
        config.name
        for config in streams.stream_configs()
        for pattern in config.subjects or ()
        if re.fullmatch(re.escape(pattern).replace(r"\*", "[^.]+"), subject)
    ]


def test_every_fact_is_stored_in_one_stream_and_nothing_else_is():
    for kind in CATALOG.values():
        assert covered(kind.subject("demo", machine="w")) == [subjects.EVENT_STREAM]
    assert covered(subjects.command("demo", "w")) == [subjects.COMMAND_STREAM]
    assert covered(subjects.DEAD_LETTER) == [streams.DEAD_STREAM]
    for never in (subjects.telemetry("demo", "w"), subjects.request("demo", "migrate")):
        assert covered(never) == []


async def test_acknowledged_commands_leave_the_server(nats_url: str):
    async with NatsBus(nats_url) as bus:
        await bus.setup()
        await bus.send_command("demo", "w", Stop(reason="r"), id="1")
        command = await anext(bus.commands("demo", "w"))
        await command.ack()
        await bus.publish(
            new_event(job="demo", source="/x", payload=MachineLost(machine="w", reason="r"))
        )  # a round trip behind the acknowledgement
        info = await bus.client.jetstream().stream_info(subjects.COMMAND_STREAM)
        assert info.state.messages == 0


async def test_the_place_of_a_machine_that_is_gone_is_forgotten_and_its_commands_are_not(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NatsBus, "QUEUE_FORGOTTEN_AFTER_S", 0.2)
    async with NatsBus(nats_url) as bus:
        await bus.setup()
        await bus.send_command("demo", "w", Stop(reason="r"), id="1")
        jetstream = bus.client.jetstream()
        deletions = await bus.client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.DELETED.>")
        async with (
            NatsBus(nats_url, ack_wait_s=0.2) as agent,  # what is out keeps its place as well
            aclosing(agent.commands("demo", "w")) as queue,
        ):
            first = await anext(queue)
        assert len(await jetstream.consumers_info(subjects.COMMAND_STREAM)) == 1
        await deletions.next_msg(timeout=10)
        assert await jetstream.consumers_info(subjects.COMMAND_STREAM) == []
        async with aclosing(bus.commands("demo", "w")) as queue:
            again = await anext(queue)
    assert again.payload == first.payload


async def test_a_bus_of_an_older_version_is_told_how_to_forget(nats_url: str) -> None:
    payload = StepProgress(machine="w", rank=0, epoch=1, step=1, step_s=0.1)
    event = new_event(job="demo", source="/machine/w", payload=payload)
    async with NatsBus(nats_url) as bus:
        facts = next(c for c in streams.stream_configs() if c.name == subjects.EVENT_STREAM)
        await bus.client.jetstream().add_stream(facts.evolve(allow_msg_ttl=False))
        with pytest.raises(BusError, match="run 'trainmover bus setup' once more"):
            await bus.publish(event)
        await bus.setup()
        await bus.publish(event)
        assert await bus.event_count("demo") == 1


async def test_setup_gives_the_commands_of_an_older_version_an_age(nats_url: str) -> None:
    async with NatsBus(nats_url) as bus:
        jetstream = bus.client.jetstream()
        queue = next(c for c in streams.stream_configs() if c.name == subjects.COMMAND_STREAM)
        await jetstream.add_stream(queue.evolve(max_age=0))
        await bus.setup()
        config = (await jetstream.stream_info(subjects.COMMAND_STREAM)).config
        assert config.max_age == queue.max_age
        await jetstream.update_stream(config.evolve(max_age=3600))
        await bus.setup()
        config = (await jetstream.stream_info(subjects.COMMAND_STREAM)).config
        assert config.max_age == 3600


async def test_a_bucket_full_of_migrations_drops_the_first_and_no_lease(nats_url: str) -> None:
    async with NatsBus(nats_url) as bus:
        jetstream = bus.client.jetstream()
        mirror = next(c for c in streams.stream_configs() if c.name == "KV_tm_migrations")
        older = mirror.evolve(discard=DiscardPolicy.NEW, max_bytes=64 * 1024)
        await jetstream.add_stream(older.evolve(max_msg_size=8 * 1024))  # an older version's
        await bus.setup()
        for number in range(40):
            await bus.put("tm_migrations", f"demo.m-{number:04d}", b"x" * 4096, revision=None)
        keys = await bus.keys("tm_migrations")
        jobs = (await jetstream.stream_info("KV_tm_jobs")).config
    assert keys[-1] == "demo.m-0039"
    assert 5 < len(keys) < 20
    assert jobs.discard == DiscardPolicy.NEW


async def test_what_is_said_over_and_over_is_soon_forgotten(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kind_of(payload: StepProgress) -> EventType:
        return replace(type_of(payload), kept_s=1 if payload.step % 2 == 0 else None)

    monkeypatch.setattr(nats_bus, "type_of", kind_of)
    async with NatsBus(nats_url) as bus, aclosing(bus.events("demo")) as facts:
        await bus.setup()
        for step in range(6):
            payload = StepProgress(machine="w", rank=0, epoch=1, step=step, step_s=0.1)
            await bus.publish(new_event(job="demo", source="/machine/w", payload=payload))
        early = await collect(facts, 6)
        async with asyncio.timeout(20):
            while await bus.event_count("demo") > 3:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.05)
        async with aclosing(bus.events("demo")) as again:
            late = await collect(again, 3)
        await bus.publish(new_event(job="demo", source="/machine/w", payload=payload))
        await anext(facts)
    assert [each.payload.payload.step for each in early] == [0, 1, 2, 3, 4, 5]
    assert [each.payload.payload.step for each in late] == [1, 3, 5]
    assert [each.stream_sequence for each in late] == [2, 4, 6]


def test_what_is_said_over_and_over_is_kept_for_a_while_and_all_else_for_good() -> None:
    assert {kind.name: kind.kept_s for kind in CATALOG.values() if kind.kept_s is not None} == {
        "machine.data_differs": 3600,
        "machine.warming_failed": 3600,
        "step.progress": 5,
        "incident.updated": 600,
        "job.analysis_placed": 600,
        "pool.seen": 10,
    }


async def test_dead_letters_are_kept_once(nats_url: str):
    async with NatsBus(nats_url) as one, NatsBus(nats_url) as two:
        await one.setup()
        jetstream = one.client.jetstream()
        await jetstream.publish("tm.v1.demo.machine.lost", b"\xff", headers={"X-Odd": "é"})
        good = new_event(job="demo", source="/x", payload=MachineLost(machine="w", reason="r"))
        await one.publish(good)
        for bus in (one, two):
            assert (await anext(bus.events("demo"))).payload.id == good.id
            await bus.publish(good)  # a round trip behind the letter
        info = await jetstream.stream_info(streams.DEAD_STREAM)
        assert info.state.messages == 1
        letter = await jetstream.get_last_msg(streams.DEAD_STREAM, subjects.DEAD_LETTER)
    assert letter.data == b"\xff"
    assert letter.headers["tm-subject"] == "tm.v1.demo.machine.lost"
    assert letter.headers["tm-reason"].startswith("message%20on")


async def test_setup_widens_the_stream_of_an_older_version_and_keeps_its_tuning(nats_url: str):
    async with NatsBus(nats_url) as bus:
        jetstream = bus.client.jetstream()
        await jetstream.add_stream(
            StreamConfig(
                name=subjects.EVENT_STREAM,
                subjects=["tm.v1.*.job.*", "tm.v1.*.newer.*"],
                max_bytes=5_000_000,
            )
        )
        await bus.setup()
        config = (await jetstream.stream_info(subjects.EVENT_STREAM)).config
        assert set(config.subjects) == {*streams.fact_subjects("*"), "tm.v1.*.newer.*"}
        assert config.max_bytes == 5_000_000
        await bus.publish(
            new_event(job="demo", source="/x", payload=MachineLost(machine="w", reason="r"))
        )


@pytest.mark.parametrize("text", ["three", "0", "6", "-1"])
async def test_a_number_of_replicas_that_cannot_be_is_refused(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(streams.REPLICAS_VARIABLE, text)
    async with NatsBus(nats_url) as bus:
        with pytest.raises(ConfigError, match="TRAINMOVER_NATS_REPLICAS"):
            await bus.setup()


async def test_one_server_cannot_keep_streams_three_times(nats_url: str) -> None:
    async with NatsBus(nats_url) as bus:
        with pytest.raises(BusError, match="replicas"):
            await bus.setup(replicas=3)


async def test_a_key_that_an_operator_deleted_is_absent(nats_url: str):
    async with NatsBus(nats_url) as bus:
        await bus.setup()
        await bus.put("tm_jobs", "demo", b"1", revision=None)
        await bus.put("tm_jobs", "other", b"1", revision=None)
        bucket = await bus.client.jetstream().key_value("tm_jobs")
        await bucket.delete("demo")
        assert await bus.get("tm_jobs", "demo") is None
        assert await bus.keys("tm_jobs") == ["other"]
        entry = await bus.put("tm_jobs", "demo", b"2", revision=None)
        assert await bus.get("tm_jobs", "demo") == entry
