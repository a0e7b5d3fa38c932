"""What is stored where on a real server, and how it is upgraded."""

from __future__ import annotations

import re

import pytest
from nats.js.api import StreamConfig

from trainmover import subjects
from trainmover.bus import streams
from trainmover.bus.nats import NatsBus
from trainmover.commands import Stop
from trainmover.errors import BusError, ConfigError
from trainmover.events.catalog import CATALOG
from trainmover.events.machine import MachineLost
from trainmover.observe import new_event


def covered(subject: str) -> list[str]:
    """Streams that would store ``subject``."""
    return [
        config.name
        for config in streams.stream_configs()
        for pattern in config.subjects
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
