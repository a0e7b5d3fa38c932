"""Outages, restarts and refusals: what only a real server can do to us."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta

import pytest
from nats.aio.msg import Msg
from nats.js.api import Header
from structlog.testing import capture_logs
from structlog.typing import EventDict

from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.nats.reading import OrderedReader
from trainmover.commands import Stop
from trainmover.errors import BusError, BusUnavailableError, PermissionDeniedError
from trainmover.events import Envelope
from trainmover.events.machine import MachineLost, MachineQuarantined
from trainmover.subjects import EVENT_STREAM
from trainmover.testing import collect, running_server
from trainmover.tracing.observe import new_event


def lost(machine: str, *, id: str | None = None) -> Envelope:
    payload = MachineLost(machine=machine, reason="test")
    return new_event(job="demo", source="/planner", payload=payload, id=id)


def quarantined(machine: str) -> Envelope:
    payload = MachineQuarantined(machine=machine, reason="test")
    return new_event(job="demo", source="/planner", payload=payload)


async def ping_for_ever(bus: NatsBus) -> None:
    while True:
        await bus.ping()


class Watched:
    """A bus whose outages can be awaited."""

    def __init__(self, url: str) -> None:
        self.lost = asyncio.Event()
        self.back = asyncio.Event()
        self.bus = NatsBus(url, on_disconnect=self._lost, on_reconnect=self._back)

    async def _lost(self) -> None:
        self.lost.set()

    async def _back(self) -> None:
        self.back.set()


class TestRestart:
    async def test_readers_go_on_where_they_were(self, nats_server: EmbeddedServer):
        watched = Watched(nats_server.url)
        async with watched.bus as bus:
            await bus.setup()
            facts = bus.events("demo", fact="lost")
            durable = bus.events("demo", fact="lost", durable="d")
            late = bus.events("demo", entity="machine", from_start=False)
            queue = bus.commands("demo", "w")
            fresh = asyncio.ensure_future(anext(late))
            async with aclosing(facts), aclosing(durable), aclosing(late), aclosing(queue):
                await bus.publish(lost("m0", id="0"))
                await collect(facts, 1)
                for delivery in await collect(durable, 1):
                    await delivery.ack()
                while not fresh.done():
                    await bus.publish(quarantined("until the late reader is there"))
                    await asyncio.wait([fresh], timeout=0.02)
                waiting = [asyncio.ensure_future(anext(each)) for each in (facts, queue, late)]
                nats_server.kill()
                await asyncio.wait_for(watched.lost.wait(), 5)
                assert not bus.connected
                nats_server.start()
                await asyncio.wait_for(watched.back.wait(), 5)
                assert bus.connected
                await bus.publish(lost("m1", id="1"))
                await bus.send_command("demo", "w", Stop(reason="r"), id="1")
                fact, command, other = await asyncio.wait_for(asyncio.gather(*waiting), 5)
                assert fact.payload.payload.machine == other.payload.payload.machine == "m1"
                await command.ack()
                [shared] = await collect(durable, 1)
                assert shared.payload.payload.machine == "m1"
                await shared.ack()

    async def test_what_was_stored_before_an_outage_is_not_repeated(
        self, nats_server: EmbeddedServer
    ):
        watched = Watched(nats_server.url)
        async with watched.bus as bus, aclosing(bus.events("demo")) as facts:
            await bus.setup()
            for n in range(100):
                await bus.publish(lost(f"m{n}"))
            before = await collect(facts, 40)
            nats_server.kill()
            await asyncio.wait_for(watched.lost.wait(), 5)
            nats_server.start()
            after = await collect(facts, 60)
            names = [each.payload.payload.machine for each in before + after]
            assert names == [f"m{n}" for n in range(100)]

    async def test_repeating_a_publish_after_an_outage_stores_it_once(
        self, nats_server: EmbeddedServer
    ):
        watched = Watched(nats_server.url)
        async with watched.bus as bus:
            await bus.setup()
            await bus.publish(lost("m", id="once"))
            nats_server.kill()
            await asyncio.wait_for(watched.lost.wait(), 5)
            nats_server.start()
            await bus.publish(lost("m", id="once"))
            assert await bus.event_count("demo") == 1

    async def test_the_first_call_after_a_restart_just_waits_for_the_server(
        self, nats_server: EmbeddedServer
    ):
        watched = Watched(nats_server.url)
        async with watched.bus as bus:
            await bus.setup()
            nats_server.kill()
            await asyncio.wait_for(watched.lost.wait(), 5)
            publishing = asyncio.ensure_future(bus.publish(lost("m")))
            nats_server.start()
            await publishing
            assert await bus.event_count("demo") == 1


async def insist(call: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await call()
        except BusUnavailableError:
            continue  # the call itself waited for the server


async def obey(bus: NatsBus, count: int) -> set[str]:
    """The commands that came; at least once each, so a repeat must change nothing."""
    seen: set[str] = set()
    async for command in bus.commands("demo", "w"):
        seen.add(command.payload.reason)
        await command.ack()
        if len(seen) == count:
            break
    return seen


async def publish_for_ever(bus: NatsBus) -> None:
    while True:
        await bus.publish(lost("m"))


class TestStorm:
    async def test_every_fact_once_and_in_order_whatever_happens(self, nats_server: EmbeddedServer):
        """A writer that repeats what failed, readers of all kinds, and a server that dies often."""
        count = 150
        watched = Watched(nats_server.url)

        async def write(bus: NatsBus) -> None:
            for n in range(count):
                event, stop = lost(f"m{n}", id=f"e{n}"), Stop(reason=str(n))
                if n % 30 == 10:
                    watched.lost.clear()
                    nats_server.kill()
                    await watched.lost.wait()
                    outage = asyncio.ensure_future(insist(lambda event=event: bus.publish(event)))
                    nats_server.start()
                    await outage
                await insist(lambda event=event: bus.publish(event))
                await insist(lambda stop=stop, n=n: bus.send_command("demo", "w", stop, id=f"c{n}"))

        async def read(bus: NatsBus) -> list[str]:
            facts = await collect(bus.events("demo"), count, within=timedelta(seconds=60))
            return [each.payload.payload.machine for each in facts]

        async with watched.bus as bus, NatsBus(nats_server.url, ack_wait_s=1) as other:
            await bus.setup()
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                live = group.create_task(read(other))
                obeying = group.create_task(obey(other, count))
                await write(bus)
            expected = [f"m{n}" for n in range(count)]
            assert live.result() == expected
            assert await read(bus) == expected
            assert obeying.result() == {str(n) for n in range(count)}


def errors(lines: list[EventDict]) -> list[EventDict]:
    return [one for one in lines if one["log_level"] == "error"]


class TestOutage:
    async def test_calls_fail_in_about_a_second(self, nats_server: EmbeddedServer):
        watched = Watched(nats_server.url)
        async with watched.bus as bus:
            await bus.setup()
            nats_server.kill()
            await asyncio.wait_for(watched.lost.wait(), 5)
            calls = [
                bus.publish(lost("m")),
                bus.send_command("demo", "w", Stop(reason="r"), id="1"),
                bus.event_count("demo"),
                bus.get("tm_jobs", "demo"),
                bus.put("tm_jobs", "demo", b"", revision=None),
                bus.request("demo", "x", Stop(reason="r"), timeout_s=1),
            ]
            began = time.monotonic()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - began < 2
            assert {type(each) for each in outcomes} == {BusUnavailableError}
            await bus.send_telemetry("demo", "w", b"lossy: no error")

    async def test_an_outage_is_told_once(self, nats_server: EmbeddedServer):
        watched = Watched(nats_server.url)
        with capture_logs() as lines:
            async with watched.bus as bus:
                await bus.setup()
                reading = asyncio.ensure_future(anext(bus.events("demo")))
                for _ in range(2):
                    watched.lost.clear()
                    watched.back.clear()
                    nats_server.kill()
                    await asyncio.wait_for(watched.lost.wait(), 5)
                    with pytest.raises(BusUnavailableError):
                        await bus.publish(lost("m"))
                    nats_server.start()
                    await asyncio.wait_for(watched.back.wait(), 5)
                reading.cancel()
        told = [line["event"] for line in lines if line["log_level"] != "debug"]
        assert told == ["bus.lost", "bus.back"] * 2

    async def test_leaving_with_a_dead_server_is_quick(self, nats_server: EmbeddedServer):
        watched = Watched(nats_server.url)
        ended: list[str] = []

        async def read(name: str, source) -> None:
            async for _ in source:
                pass
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            async with watched.bus as bus:
                await bus.setup()
                for name, source in {
                    "facts": bus.events("demo"),
                    "durable": bus.events("demo", durable="d"),
                    "commands": bus.commands("demo", "w"),
                    "telemetry": bus.telemetry("demo"),
                }.items():
                    group.create_task(read(name, source))
                cancelled = group.create_task(read("cancelled", bus.commands("demo", "v")))
                await bus.publish(lost("m"))
                nats_server.kill()
                await asyncio.wait_for(watched.lost.wait(), 5)
                began = time.monotonic()
                cancelled.cancel()
                await asyncio.wait([cancelled])
                assert time.monotonic() - began < 1
                began = time.monotonic()
            assert time.monotonic() - began < 1
        assert time.monotonic() - began < 1.5
        assert sorted(ended) == ["commands", "durable", "facts", "telemetry"]

    async def test_a_frozen_server_is_noticed_and_left_quickly(self, nats_server: EmbeddedServer):
        watched = Watched(nats_server.url)
        async with watched.bus as bus:
            await bus.setup()
            os.kill(nats_server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(BusUnavailableError, match="outcome is unknown"):
                    await publish_for_ever(bus)  # the signal takes a moment to stop every thread
                await asyncio.wait_for(watched.lost.wait(), 6)
                began = time.monotonic()
                await bus.__aexit__(None, None, None)
                assert time.monotonic() - began < 1
            finally:
                os.kill(nats_server.pid, signal.SIGCONT)

    async def test_a_late_answer_to_a_ping_that_was_given_up_costs_no_connection(
        self, nats_server: EmbeddedServer
    ):
        watched = Watched(nats_server.url)
        async with watched.bus as bus:
            await bus.setup()
            bus._connection.timeout_s = 0.2
            os.kill(nats_server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(BusUnavailableError):
                    await ping_for_ever(bus)  # the signal takes a moment to stop every thread
            finally:
                os.kill(nats_server.pid, signal.SIGCONT)
            bus._connection.timeout_s = 1.0
            await bus.publish(lost("m"))
            assert not watched.lost.is_set()

    async def test_a_connection_that_the_server_ended_for_good_says_so(self, nats_url: str):
        with capture_logs() as lines:
            async with NatsBus(nats_url) as bus:
                await bus.setup()
                reading = asyncio.ensure_future(anext(bus.events("demo")))
                await bus.event_count("demo")
                await bus.client._process_err("'Maximum Connections Exceeded'")
                with pytest.raises(BusUnavailableError):
                    await reading
                with pytest.raises(BusUnavailableError, match=r"for good .*Maximum Connections"):
                    await bus.publish(lost("m"))
                assert not bus.connected
                async with asyncio.timeout(5):
                    # nats-py tells of the end when it is over, in a task of its own.
                    while not (told := errors(lines)):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        assert [one["event"] for one in told] == ["bus.closed_by_server"]

    async def test_no_server_at_all(self):
        with pytest.raises(BusUnavailableError, match="Is the NATS server running"):
            async with NatsBus("nats://127.0.0.1:1", connect_timeout=0.3):
                pass

    async def test_a_bus_without_streams_says_what_to_do(self, nats_url: str):
        async with NatsBus(nats_url) as bus:
            with pytest.raises(BusUnavailableError, match="setup"):
                await bus.publish(lost("m"))
            with pytest.raises(BusError, match=r"read TM_EVENTS.*trainmover bus setup"):
                await anext(bus.events("demo"))


class TestLatency:
    async def test_delivery_takes_milliseconds(self, nats_url: str):
        loop = asyncio.get_running_loop()
        took: list[float] = []
        async with NatsBus(nats_url) as sender, NatsBus(nats_url) as receiver:
            await sender.setup()
            facts, queue = receiver.events("demo"), receiver.commands("demo", "w")
            async with aclosing(facts), aclosing(queue):
                for n in range(60):
                    pending = asyncio.ensure_future(anext(facts))
                    began = loop.time()
                    await sender.publish(lost(f"m{n}"))
                    await pending
                    pending_command = asyncio.ensure_future(anext(queue))
                    await sender.send_command("demo", "w", Stop(reason="r"), id=str(n))
                    command = await pending_command
                    took.append(loop.time() - began)
                    await command.ack()
        assert sorted(took)[30] < 0.03  # both hops, on a machine that does other things too


ROLES = """
accounts { A: { jetstream: enabled, users: [
    { user: admin, password: x }
    { user: agent, password: x, permissions: {
        publish: ["tm.v1.*.machine.*", "tm.v1.*.telemetry.w1",
                  "$JS.API.CONSUMER.CREATE.TM_COMMANDS.>",
                  "$JS.API.CONSUMER.DURABLE.CREATE.TM_COMMANDS.>",
                  "$JS.API.CONSUMER.MSG.NEXT.TM_COMMANDS.>", "$JS.ACK.TM_COMMANDS.>"]
        subscribe: ["_INBOX.>"] } }
] } }
"""


class TestPermissions:
    @pytest.fixture
    def urls(self):
        with running_server(extra_config=ROLES) as server:
            yield tuple(
                server.url.replace("//", f"//{user}:x@") for user in ("admin", "agent", "nobody")
            )

    async def test_a_forbidden_publish_says_so_at_once(self, urls):
        admin_url, agent_url, _ = urls
        async with NatsBus(admin_url) as admin, NatsBus(agent_url) as agent:
            await admin.setup()
            await agent.publish(lost("allowed"))
            began = time.monotonic()
            with pytest.raises(PermissionDeniedError, match=r"tm\.v1\.demo\.cmd\.w2"):
                await agent.send_command("demo", "w2", Stop(reason="r"), id="1")
            with pytest.raises(PermissionDeniedError, match="KV"):
                await agent.put("tm_jobs", "demo", b"", revision=1)
            with pytest.raises(PermissionDeniedError):
                await agent.setup()
            assert time.monotonic() - began < 0.9  # not a time-out
            await agent.publish(lost("still allowed"))
            assert await admin.event_count("demo") == 2

    async def test_a_forbidden_subscription_says_so_at_once(self, urls):
        admin_url, agent_url, _ = urls
        async with NatsBus(admin_url) as admin, NatsBus(agent_url) as agent:
            await admin.setup()
            with pytest.raises(PermissionDeniedError, match="telemetry"):
                await anext(agent.telemetry("demo"))
            with pytest.raises(PermissionDeniedError, match="TM_EVENTS"):
                await anext(agent.events("demo"))
            with pytest.raises(PermissionDeniedError):
                await agent.serve("demo", None)

    async def test_an_allowed_reader_works(self, urls):
        admin_url, agent_url, _ = urls
        async with NatsBus(admin_url) as admin, NatsBus(agent_url) as agent:
            await admin.setup()
            await admin.send_command("demo", "w1", Stop(reason="r"), id="1")
            async with aclosing(agent.commands("demo", "w1")) as queue:
                [command] = await collect(queue, 1)
                await command.ack()
                with pytest.raises(TimeoutError):
                    await collect(queue, 1, within=timedelta(milliseconds=100))

    async def test_forbidden_telemetry_is_told_once(self, urls):
        admin_url, agent_url, _ = urls
        with capture_logs() as lines:
            async with NatsBus(admin_url) as admin, NatsBus(agent_url) as agent:
                await admin.setup()
                for _ in range(5):
                    await agent.send_telemetry("demo", "other", b"x")
                await agent.publish(lost("m"))
        assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
            "bus.forbidden"
        ]

    async def test_an_unknown_user(self, urls):
        with pytest.raises(PermissionDeniedError, match="does not know this user"):
            async with NatsBus(urls[2]):
                pass


async def test_a_reader_begins_anew_while_heartbeats_wait_for_it(
    nats_server: EmbeddedServer,
) -> None:
    """As a process does that stood still: it finds them, and believes the server silent."""
    async with NatsBus(nats_server.url) as bus:
        await bus.setup()
        subject = lost("w").subject
        reader = OrderedReader(
            bus._connection, stream=EVENT_STREAM, filters=[subject], from_start=True
        )
        async with aclosing(reader.messages()) as messages:
            await bus.publish(lost("w-0"))
            first = await anext(messages)
            waiting = asyncio.ensure_future(anext(messages))
            reader._stale = True
            heartbeat = Msg(bus._connection.client, reader._inbox, headers={Header.STATUS: "100"})
            reader._queue.put_nowait(heartbeat)
            reader._queue.put_nowait(first)
            await bus.publish(lost("w-1"))
            assert (await waiting).metadata.sequence.stream == 2
            assert reader._queue.empty()


async def test_closing_while_the_server_is_gone_leaves_no_task_behind(
    nats_server: EmbeddedServer,
) -> None:
    """A reconnection that swallowed its cancellation kept whole processes from ending."""
    mine = asyncio.current_task()
    for _ in range(5):
        async with NatsBus(nats_server.url) as bus:
            await bus.setup()
            nats_server.kill()
            with pytest.raises(BusUnavailableError):
                await bus.publish(lost("w"))
        async with asyncio.timeout(5):
            while strays := [task for task in asyncio.all_tasks() if task is not mine]:
                await asyncio.wait(strays)
        nats_server.start()
