"""Telemetry on the wire: everything comes back, and nothing that is not ours is taken for it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmover.errors import MalformedEventError
from trainmover.telemetry.records import Batch, Sections, decode_batch, encode_batch, span_of

DTYPES = {each.name: Sections().named(each.name).dtype for each in fields(Sections)}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TRICKY = st.sampled_from(['"sections":', ',"sections":[]}', "\n", "\\", '"}'])


def some(name: str, count: int) -> np.ndarray:
    """Records of a section that differ from each other in each byte."""
    dtype = DTYPES[name]
    body = np.random.default_rng(count).integers(0, 128, count * dtype.itemsize, np.uint8)
    return body.view(dtype)


def batch_of(counts: dict[str, int], **more: Any) -> Batch:
    sections = Sections(**{name: some(name, count) for name, count in counts.items()})
    said = {"job": "j", "machine": "m", "generation": 0, "epoch": 1} | more
    return Batch(**said, records=sections.records, more=sections)


@given(
    counts=st.dictionaries(st.sampled_from(sorted(DTYPES)), st.integers(1, 5)),
    job=NAMES | TRICKY,
    machine=NAMES | TRICKY,
    numbers=st.tuples(st.integers(0, 9), st.integers(1, 1 << 40), st.integers(0, 1 << 40)),
    groups=st.dictionaries(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 99), unique=True)),
)
def test_what_is_encoded_comes_back(counts, job, machine, numbers, groups):
    generation, epoch, dropped = numbers
    spans = {group: span_of(ranks) for group, ranks in groups.items()}
    said = batch_of(
        counts,
        job=job,
        machine=machine,
        generation=generation,
        epoch=epoch,
        dropped=dropped,
        groups=spans,
    )

    heard = decode_batch(encode_batch(said))

    assert (heard.job, heard.machine, heard.generation) == (job, machine, generation)
    assert (heard.epoch, heard.dropped, heard.groups) == (epoch, dropped, spans)
    for name, dtype in DTYPES.items():
        mine, theirs = said.more.named(name), heard.more.named(name)
        assert (theirs.dtype, theirs.tobytes()) == (dtype, mine.tobytes())
    assert {g: [r for span in s for r in span] for g, s in heard.groups.items()} == groups


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("last", ["groups", "dropped", "more", "sections"])
def test_another_order_of_the_header_means_the_same(separators, last):
    data = encode_batch(batch_of({"steps": 2}, groups={7: span_of([0, 1])}))
    head, _, body = data.partition(b"\n")
    header = json.loads(head) | {"more": ["that", "nobody", "knows"]}
    header[last] = header.pop(last)
    turned = json.dumps(header, separators=separators).encode()

    heard = decode_batch(turned + b"\n" + body)

    assert heard.more.steps.tobytes() == some("steps", 2).tobytes()
    assert heard.groups == {7: (range(2),)}


def edited(change: Callable[[dict[str, Any]], object]) -> bytes:
    head, _, body = encode_batch(batch_of({"records": 1, "steps": 2})).partition(b"\n")
    header = json.loads(head)
    change(header)
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not parse"),
        (b"\n", "does not parse"),
        (b"[]\n", "does not parse"),
        (b'{"a":{"v":2,"sections":[]}\n', "does not parse"),
        (encode_batch(batch_of({})).strip(), "version 'missing'"),
        (edited(lambda head: head.update(v=1)), "version 1 is not 2"),
        (edited(lambda head: head.pop("job")), "job"),
        (edited(lambda head: head["sections"].reverse()), "not in their order"),
        (edited(lambda head: head["sections"].append(head["sections"][0])), "not one of ours"),
        (edited(lambda head: head["sections"][0].update(name="secrets")), "not one of ours"),
        (edited(lambda head: head["sections"][0].update(count=-1)), "not one of ours"),
        (edited(lambda head: head["sections"][1].update(count=3)), "buffer is smaller"),
        (edited(lambda head: head["sections"][1].update(count=1)), "the body has"),
        (edited(lambda head: head["sections"][1].update(count=10**30)), "does not parse"),
        (edited(lambda head: head.update(generation=float("inf"))), "infinity"),
        (edited(lambda head: head.update(groups={"1": [[0, 4, 0]]})), "does not parse"),
        (b"[" * 100_000 + b"\n", "does not parse"),
        (edited(lambda head: head["sections"][1]["dtype"].pop()), "another layout"),
        (edited(lambda head: head["sections"].pop()), "the body has"),
        (b" " * (8 * 1024 * 1024 + 1), "over"),
    ],
)
def test_what_is_not_ours_is_refused_with_the_reason_each_time(data, reason):
    for _ in range(2):
        with pytest.raises(MalformedEventError, match=reason):
            decode_batch(data)


@given(st.data())
def test_damaged_bytes_are_a_batch_or_refused_never_anything_else(data):
    whole = encode_batch(batch_of({"records": 2, "links": 1}, groups={3: (range(4),)}))
    at = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(st.binary(max_size=8))
    damaged = whole[:at] + damage + whole[at + data.draw(st.integers(0, 8)) :]

    with contextlib.suppress(MalformedEventError):
        assert isinstance(decode_batch(damaged), Batch)


@given(st.lists(st.integers(0, 200), unique=True))
def test_spans_are_the_ranks_in_their_order(ranks):
    assert [rank for span in span_of(ranks) for rank in span] == ranks


def test_ranks_side_by_side_are_one_span():
    assert span_of(range(4, 64, 4)) == (range(4, 61, 4),)
