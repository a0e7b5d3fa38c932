"""Malformed, oversized, replayed, reordered, foreign facts do nothing but become dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.unit import factories as make

from trainmover import subjects
from trainmover.bus.dead import KEPT_BYTES
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import DEAD_STREAM
from trainmover.events import Envelope, encode
from trainmover.events.envelope import MAX_BYTES
from trainmover.events.machine import MachineLost
from trainmover.events.sequence import Numbering
from trainmover.job.topology import Frozen
from trainmover.testing import BusBench
from trainmover.tracing.observe import new_event
from trainmover_console.view import JobView

JOB = "demo"
MOVE = make.Move(
    "m-0001",
    slot=1,
    leaver="w1",
    joiner="w2",
    after=make.membership_of("w0", "w2", epoch=2),
    step=7,
)
STORY: tuple[Frozen, ...] = (
    *(make.registered(f"w{n}") for n in range(3)),
    make.progress("w0", 0, 5),
    MOVE.proposed(),
    MOVE.preparing(),
    MOVE.committed(),
    make.progress("w0", 0, 9),
)


def said(payload: Frozen) -> Envelope:
    return new_event(job=JOB, source=make.source_of(payload), payload=payload)


class Eavesdropper:
    """Stores facts as a client of our own would, and remembers every message on the wire."""

    def __init__(self, bench: BusBench) -> None:
        self._bench = bench
        self._numbering = Numbering()
        self.heard: list[tuple[str, dict[str, str], bytes]] = []

    async def say(self, payload: Frozen) -> None:
        with self._numbering.next() as sequence:
            event = replace(said(payload), sequence=sequence)
            self.heard.append((event.subject, *encode(event)))
            await self._bench.inject(*self.heard[-1])


@pytest.fixture
def stream(bench: BusBench) -> Eavesdropper:
    return Eavesdropper(bench)


async def view_of(bench: BusBench, *, last: Frozen) -> JobView:
    """Everything that a reader takes in, up to a mark at the end of the stream."""
    view = JobView(JOB)
    async with bench.connect() as bus, aclosing(bus.events(JOB)) as facts:
        async for delivery in facts:
            view.apply(delivery.payload)
            if delivery.payload.payload == last:
                return view
    raise AssertionError("the stream ended")


END = MachineLost(machine="w9", reason="the end")


async def clean() -> dict[str, object]:
    view = JobView(JOB)
    for payload in (*STORY, END):
        view.apply(said(payload))
    return strip(view)


def strip(view: JobView) -> dict[str, object]:
    """What a view says, apart from when."""
    data = view.as_data()
    for move in data["migrations"]:
        move["times"] = sorted(move["times"])
        move["phases_s"] = sorted(move["phases_s"])
        move["trace_id"] = None
    return data


async def hostile(
    stream: Eavesdropper, kind: str
) -> AsyncIterator[tuple[str, dict[str, str], bytes]]:
    """Messages of one kind, made from what was overheard."""
    subject, headers, body = stream.heard[3]  # w0 is at step 5
    for attack in {
        "malformed": [
            (subject, {}, b"\xff\x00"),
            (subject, headers | {"ce-id": "new"}, body[:-1]),
            (subject, {k: v for k, v in headers.items() if k != "ce-time"}, body),
        ],
        "foreign": [
            (subject, headers | {"ce-type": "dev.trainmover.step.danced.v1"}, body),
            (subject, headers | {"ce-type": "dev.trainmover.step.resumed.v1"}, body),
            (subject.replace("w0", "w1"), headers, body),
            (subject, headers | {"ce-source": "/machine/w1"}, body),
        ],
        "oversized": [(subject, headers | {"ce-id": "new"}, body + b" " * MAX_BYTES)],
        "replayed": [
            (subject, headers, body),
            # made to look new to the server, which compares Nats-Msg-Id, and to the numbering
            (subject, headers | {"Nats-Msg-Id": "other", "ce-sequence": "x.000000000001"}, body),
        ],
        "reordered": [
            # a fact that was held back, or a new id for an old one: its number is over
            (subject, headers | {"ce-id": "held-back"}, body),
        ],
    }[kind]:
        yield attack


@pytest.mark.parametrize("kind", ["malformed", "foreign", "oversized", "replayed", "reordered"])
async def test_hostile_facts_change_nothing(
    bench: BusBench, stream: Eavesdropper, kind: str
) -> None:
    for payload in STORY:
        await stream.say(payload)
    sent = [attack async for attack in hostile(stream, kind)]
    for attack in sent:
        await bench.inject(*attack)
    await stream.say(END)
    view = await view_of(bench, last=END)
    assert strip(view) == await clean()
    async with asyncio.timeout(5):
        while len(bench.dead_kinds()) < len(sent):  # noqa: ASYNC110 - what is heard has no event
            await asyncio.sleep(0.01)
    assert bench.dead_kinds() == [kind] * len(sent)
    assert [subject for subject, _ in bench.dead_letters()] == [subject for subject, *_ in sent]


async def test_a_retry_is_deduplicated_and_no_dead_letter(bench: BusBench) -> None:
    """What a writer repeats because it did not hear the outcome is stored once."""
    fact = said(END)
    async with bench.connect() as bus:
        for _ in range(3):
            await bus.publish(fact)
        assert await bus.event_count(JOB) == 1
    await view_of(bench, last=END)
    assert bench.dead_kinds() == []


async def test_what_comes_again_unacknowledged_is_no_replay(bench: BusBench) -> None:
    async with bench.connect() as bus, aclosing(bus.events(JOB, durable="d")) as facts:
        await bus.publish(said(END))
        attempts = []
        async for delivery in facts:
            attempts.append(delivery.attempt)
            if len(attempts) == 3:
                await delivery.ack()
                break
            await delivery.nak()
    assert attempts == [1, 2, 3]
    assert bench.dead_kinds() == []


async def test_a_late_fact_of_a_writer_in_trouble_counts(bench: BusBench) -> None:
    """An outage between publishing and hearing of it begins a new run: late is not replayed."""
    numbering = Numbering()
    with pytest.raises(TimeoutError), numbering.next() as first:
        raise TimeoutError  # it may still arrive
    with numbering.next() as second:
        pass
    late, next_ = (
        replace(said(make.progress("w0", 0, n)), sequence=s) for n, s in ((1, first), (2, second))
    )
    for event in (next_, late):
        await bench.inject(event.subject, *encode(event))
    async with bench.connect() as bus:
        await bus.publish(said(END))
    await view_of(bench, last=END)
    assert bench.dead_kinds() == []


async def test_nobody_spoils_anothers_numbers(bench: BusBench) -> None:
    """w1 claims w0's run with a huge number; w0's next fact still counts."""
    numbering = Numbering()
    with numbering.next() as first:
        mine = replace(said(make.progress("w0", 0, 1)), sequence=first)
    run = first.partition(".")[0]
    forged = replace(said(make.progress("w1", 1, 1)), sequence=f"{run}.999999999999")
    with numbering.next() as second:
        next_ = replace(said(make.progress("w0", 0, 2)), sequence=second)
    for event in (mine, forged, next_):
        await bench.inject(event.subject, *encode(event))
    async with bench.connect() as bus:
        await bus.publish(said(END))
    view = await view_of(bench, last=END)
    assert view.machines["w0"].step == 2
    assert bench.dead_kinds() == []


async def test_a_large_letter_is_cut_and_the_server_does_not_obey_its_headers(
    nats_url: str,
) -> None:
    async with NatsBus(nats_url) as bus:
        await bus.setup()
        jetstream = bus.client.jetstream()
        subject = "tm.v1.demo.machine.lost"
        headers = {"Nats-Msg-Id": "x", "nats-ttl": "1s", "X-Odd": "é"}
        await bus.client.publish(subject, b"y" * (MAX_BYTES + 1), headers={"Nats-Msg-Id": "x"})
        await bus.client.publish(subject, b"z", headers=headers | {"Nats-Msg-Id": "z"})
        await bus.publish(said(END))
        await anext(bus.events(JOB))
        await bus.client.flush()
        letters = [await jetstream.get_msg(DEAD_STREAM, seq) for seq in (1, 2)]
    large, odd = letters
    assert len(large.data or b"") == KEPT_BYTES
    assert (large.headers or {})["tm-bytes"] == str(MAX_BYTES + 1)
    assert (large.headers or {})["tm-kind"] == "oversized"
    assert (odd.headers or {})["X-Odd"] == "%C3%A9"
    assert not any(name.lower() == "nats-ttl" for name in odd.headers or {})
    assert subjects.DEAD_LETTER == "tm.v1.dead"
