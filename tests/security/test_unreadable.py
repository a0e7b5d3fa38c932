"""A message that cannot be read is a dead letter and nothing else, whatever stands in it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from unittest import mock

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import factories as make

from trainmover.bus import dead
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import DEAD_STREAM
from trainmover.commands import parse_command
from trainmover.errors import MalformedEventError
from trainmover.events import CATALOG, decode, encode
from trainmover.events.machine import MachineLost
from trainmover.testing import BusBench, collect, memory_bench, nats_bench
from trainmover.tracing.observe import new_event

JOB = "demo"
END = MachineLost(machine="w9", reason="the end")
FACT = make.registered("w0")
SUBJECT = "tm.v1.demo.machine.registered.w0"


def fact() -> tuple[dict[str, str], bytes]:
    return encode(new_event(job=JOB, source=make.source_of(FACT), payload=FACT))


@pytest.mark.parametrize(
    "time",
    [
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00Z",
        "\ud800",
    ],
)
def test_times_that_are_none_or_at_the_ends_of_the_calendar(time: str) -> None:
    headers, body = fact()
    with pytest.raises(MalformedEventError, match="time"):
        decode(SUBJECT, headers | {"ce-time": time}, body)


_JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.binary()
)
_TEXT = st.text(st.characters(), max_size=40)


@given(
    kind=st.sampled_from(sorted(CATALOG)),
    time=st.one_of(
        _TEXT,
        st.builds(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{}".format,
            st.sampled_from([0, 1, 1970, 2026, 9999]),
            *(st.sampled_from([0, 1, 12, 31, 23, 59, 60]) for _ in range(5)),
            st.sampled_from(["", "Z", "+23:59", "-23:59", "+99:99"]),
        ),
    ),
    extra=st.dictionaries(_TEXT, _TEXT, max_size=4),
    body=st.binary(max_size=200),
    subject=_TEXT,
)
def test_parsing_raises_one_error_alone(
    kind: str, time: str, extra: dict[str, str], body: bytes, subject: str
) -> None:
    headers, good = fact()
    mixed = headers | extra | {"ce-type": kind, "ce-time": time}
    for data, where in ((body, SUBJECT), (good, SUBJECT), (good, subject)):
        try:
            decode(where, mixed, data)
        except MalformedEventError as error:
            letter = dead.letter(subject=where, headers=mixed, data=data, error=error)
            assert all(value.isascii() for value in letter.headers.values())
            assert sum(map(len, letter.headers.values())) < 64 * 1024
    for data in (body, good):
        with suppress(MalformedEventError):
            parse_command(data)


@pytest.mark.parametrize("transport", ["nats", "memory"])
async def test_what_a_parser_trips_over_is_a_dead_letter(transport: str, nats_url: str) -> None:
    """Also where the parser has a bug: whoever reads goes on with the next message."""
    bench = memory_bench() if transport == "memory" else nats_bench(nats_url)
    async with bench as bench:
        await bench.inject(SUBJECT, *fact())
        trips = mock.patch(
            f"trainmover.bus.{transport}.bus.decode",
            side_effect=[RecursionError("deep"), mock.DEFAULT],
        )
        with trips as decoder:
            decoder.return_value = new_event(job=JOB, source="/planner", payload=END)
            await bench.inject("tm.v1.demo.machine.lost", *encode(decoder.return_value))
            async with bench.connect() as bus, aclosing(bus.events(JOB)) as facts:
                [heard] = await collect(facts, 1)
        assert heard.payload.payload == END
        await _one_letter(bench)


async def _one_letter(bench: BusBench) -> None:
    async with asyncio.timeout(5):
        while not bench.dead_letters():  # noqa: ASYNC110 - what is heard has no event
            await asyncio.sleep(0.01)
    [(subject, reason)] = bench.dead_letters()
    assert (subject, reason) == (SUBJECT, "RecursionError: deep")


HOSTILE_HEADERS = {
    "a status that is no text": b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
    "a description that is no text": b"NATS/1.0 100 \xff\xfe\r\nA: b\r\n\r\n",
    "a value that is no text": b"NATS/1.0\r\nce-id: \xff\xfe\r\n\r\n",
    "a heartbeat": b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: x\r\n\r\n",
    "no more than a status": b"NATS/1.0 404\r\n\r\n",
    "thousands of headers": b"NATS/1.0\r\n"
    + b"".join(b"n%d: v\r\n" % n for n in range(5000))
    + b"\r\n",
    "a header without a colon": b"NATS/1.0\r\nnothing\r\n\r\n",
}


CORE_MESSAGES = {
    name: (b"tm.v1.demo.request.status", b"_INBOX.x", header)
    for name, header in HOSTILE_HEADERS.items()
} | {
    "a reply subject that is no text": (b"tm.v1.demo.request.status", b"_INBOX.\xff", b""),
    "a subject that is no text": (b"tm.v1.demo.request.\xff", b"_INBOX.x", b""),
    "white space in a reply subject": (b"tm.v1.demo.request.status", b"_INBOX.a\x0bb\x0c", b""),
}


@pytest.mark.parametrize(("subject", "reply", "header"), CORE_MESSAGES.values(), ids=CORE_MESSAGES)
async def test_nobody_makes_a_listener_deaf(
    nats_url: str, subject: bytes, reply: bytes, header: bytes
) -> None:
    """Whoever may ask for the status could keep a planner from its lease, one message at a time."""
    lost: list[str] = []
    asked: list[str] = []

    async def note() -> None:
        lost.append("lost")

    async def handler(verb: str, body: bytes) -> bytes:
        asked.append(verb)
        return body

    header = header or b"NATS/1.0\r\n\r\n"
    async with NatsBus(nats_url, on_disconnect=note) as bus:
        await bus.serve(JOB, handler)
        stranger = await nats.connect(nats_url)
        size = len(header)
        stranger._transport.write(
            b"HPUB %s %s %d %d\r\n%s\r\n" % (subject, reply, size, size, header)
        )
        await stranger.flush()
        await stranger.close()
        async with NatsBus(nats_url) as other:
            await other.request(JOB, "pause", END, timeout_s=1.0)
        assert lost == []
    assert asked[-1] == "pause"


@pytest.mark.parametrize("header", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
@pytest.mark.parametrize("body", [b"", b"x"], ids=["empty", "full"])
async def test_headers_that_the_client_library_trips_over(
    nats_url: str, header: bytes, body: bytes
) -> None:
    """The server stores any bytes as headers; a reader gets past them and keeps its connection."""
    lost: list[str] = []

    async def note() -> None:
        lost.append("lost")

    async with NatsBus(nats_url, on_disconnect=note) as bus:
        await bus.setup()
        raw = b"HPUB %s %d %d\r\n%s%s\r\n" % (
            SUBJECT.encode(),
            len(header),
            len(header) + len(body),
            header,
            body,
        )
        stranger = await nats.connect(nats_url)
        stranger._transport.write(raw)
        await stranger.flush()
        await stranger.close()
        await bus.publish(new_event(job=JOB, source="/planner", payload=END))
        async with aclosing(bus.events(JOB)) as facts:
            [heard] = await collect(facts, 1)
        assert heard.payload.payload == END
        assert lost == []
        async with asyncio.timeout(5):
            context = bus.client.jetstream()
            while (await context.stream_info(DEAD_STREAM)).state.messages != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
