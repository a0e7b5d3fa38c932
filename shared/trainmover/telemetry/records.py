"""Wire layout of telemetry: one JSON header line, then sections of raw little-endian records.

A batch is what one machine says about its ranks since the batch before it. It is lossy by design:
counters of links only grow, so that a lost batch loses detail and never the total. Every time in
it was taken by the clock of the rank that it is about: never compare clocks of two machines.
The layout is documented in ``docs/concepts/telemetry.md``.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainmover.errors import MalformedEventError

__all__ = [
    "ACTIVITY",
    "HEAD",
    "LINK",
    "OPS",
    "PULSE",
    "RECORD",
    "STEP",
    "Batch",
    "Flag",
    "Phase",
    "Sections",
    "decode_batch",
    "encode_batch",
    "span_of",
]

Records = npt.NDArray[np.void]

OPS: Final = (
    "allreduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
    "vote",
)
"""Operation names; a record's ``op`` is an index into this tuple."""

RECORD: Final = np.dtype(
    [
        ("rank", "<i4"),
        ("step", "<i8"),
        ("group", "<u4"),  # CRC-32 of the group's name
        ("peer", "<i4"),  # the other rank of a send or recv, -1 for a collective
        ("sequence", "<i8"),  # number of the collective in its group; of the message to that peer
        ("op", "<i4"),
        ("bytes", "<i8"),
        ("enter_ns", "<i8"),  # the rank's own monotonic clock: never compare across machines
        ("duration_ns", "<i8"),  # in ``open``: for how long it has been running
    ]
)
"""One collective or message at one rank: complete (``records``) or not yet (``open``)."""

STEP: Final = np.dtype(
    [
        ("rank", "<i4"),
        ("flags", "<u4"),  # see ``Flag``
        ("step", "<i8"),
        ("duration_ns", "<i8"),  # from the commit of the step before to this one's
        ("wait_ns", "<i8"),  # inside collectives; overlapping ones count once
        ("loader_ns", "<i8"),  # drawing the batch
        ("outside_ns", "<i8"),  # in the program, between two steps
        ("cpu_ns", "<i8"),  # processor time of the whole process
        ("ops", "<i4"),  # number of collectives and messages
        ("nonfinite", "<i4"),  # NaN and Inf seen in samples of what was about to be reduced
        ("signature", "<u8"),  # equal at ranks that issue the same operations
        ("loss", "<f8"),  # valid with Flag.LOSS
        ("checksum", "<u8"),  # of one block of the parameters, valid with Flag.CHECKSUM
    ]
)
"""One committed step at one rank."""

LINK: Final = np.dtype(
    [
        ("rank", "<i4"),
        ("peer", "<i4"),
        ("group", "<u4"),
        ("rtt_us", "<u4"),  # the kernel's smoothed round-trip time; 0 where it keeps none
        ("sent_messages", "<i8"),
        ("sent_bytes", "<i8"),
        ("send_blocked_ns", "<i8"),  # the peer, or the network, took nothing
        ("received_messages", "<i8"),
        ("received_bytes", "<i8"),
        ("wait_ns", "<i8"),  # until a message began to arrive: the peer was late
        ("body_ns", "<i8"),  # from its first byte to its last: the network's doing
        ("body_bytes", "<i8"),  # bytes that took ``body_ns``: of large messages only
        ("retransmits", "<i8"),
    ]
)
"""Counters of one link at one of its ends; they grow as long as the link lives."""

PULSE: Final = np.dtype(
    [
        ("rank", "<i4"),
        ("phase", "<i4"),  # see ``Phase``
        ("step", "<i8"),
        ("phase_ns", "<i8"),  # for how long it has been in that phase
        ("age_ns", "<i8"),  # how old this is at the agent: a frozen process says nothing new
        ("state", "<i4"),  # the kernel's state of the process, a character code; 0: not known
    ]
)
"""Where a rank was when it was last heard."""

HEAD: Final = np.dtype(
    [
        ("rank", "<i4"),
        ("group", "<u4"),
        ("issued", "<i8"),  # number of collectives that the rank has entered in this group
    ]
)
"""How far a rank is in a group; sent while it stands still."""

ACTIVITY: Final = np.dtype(
    [
        ("rank", "<i4"),
        ("operations", "<i4"),  # that ended since the batch before
    ]
)
"""What an agent sends of a rank's operations in place of ``RECORD``; see ``telemetry.stages``."""


class Phase(IntEnum):
    """What a rank does."""

    STARTING = 0
    LOADER = 1
    BODY = 2
    VOTE = 3
    OUTSIDE = 4
    MOVING = 5
    DONE = 6


class Flag(IntFlag):
    """What a step was, and which fields of its record are valid."""

    LOSS = 1
    CHECKSUM = 2
    REDONE = 4
    MESSAGES = 8
    """It has point-to-point messages: its ranks may have unequal work by design."""
    ACCELERATOR = 16
    """The work is not done by processors, so ``cpu_ns`` says little."""


_LIMIT: Final = 8 * 1024 * 1024
_VERSION: Final = 2
_SECTIONS: Final = b',"sections":'
_KEPT_LAYOUTS: Final = 1024
_KEPT_LAYOUT_BYTES: Final = 4096
"""Ours are half as long; who pads theirs must not fill our memory."""

_DTYPES: Final[dict[str, np.dtype[np.void]]] = {
    "records": RECORD,
    "open": RECORD,
    "steps": STEP,
    "links": LINK,
    "pulses": PULSE,
    "heads": HEAD,
    "activity": ACTIVITY,
}
_EMPTY: Final = {name: np.zeros(0, dtype) for name, dtype in _DTYPES.items()}
"""Empty sections, made once: a large job sends thousands of them each second."""


@dataclass(frozen=True, slots=True)
class Sections:
    """The arrays of a batch, each of the dtype of its name.

    Attributes:
        records: Completed operations, ``RECORD``.
        open: Operations that still run, ``RECORD``.
        steps: Committed steps, ``STEP``.
        links: Counters of links, ``LINK``.
        pulses: Latest sign of life of each rank, ``PULSE``.
        heads: How far each rank is in its groups, ``HEAD``; only while it stands still.
        activity: How many operations of each rank ended, ``ACTIVITY``; only where the agent
            counts them and leaves ``records`` out.
    """

    records: Records = field(default_factory=lambda: _EMPTY["records"])
    open: Records = field(default_factory=lambda: _EMPTY["open"])
    steps: Records = field(default_factory=lambda: _EMPTY["steps"])
    links: Records = field(default_factory=lambda: _EMPTY["links"])
    pulses: Records = field(default_factory=lambda: _EMPTY["pulses"])
    heads: Records = field(default_factory=lambda: _EMPTY["heads"])
    activity: Records = field(default_factory=lambda: _EMPTY["activity"])

    def counts(self) -> dict[str, int]:
        """Number of records in each section that has any."""
        return {name: len(self.named(name)) for name in _DTYPES if len(self.named(name))}

    def named(self, name: str) -> Records:
        """The section of that name."""
        section: Records = getattr(self, name)
        return section

    def pack(self) -> bytes:
        """All sections, one after the other."""
        return b"".join(self.named(name).tobytes() for name in _DTYPES)

    @staticmethod
    def unpack(body: bytes, counts: Mapping[str, int]) -> Sections:
        """Sections of known dtype out of ``body``.

        Raises:
            ValueError: They do not add up to the body.
        """
        found, at = {}, 0
        for name, dtype in _DTYPES.items():
            if count := counts.get(name, 0):
                found[name] = np.frombuffer(body, dtype, count, at)
                at += count * dtype.itemsize
        if at != len(body):
            raise ValueError(f"{dict(counts)} are {at} bytes, the body has {len(body)}")
        return Sections(**found)

    @staticmethod
    def join(parts: Sequence[Sections]) -> Sections:
        """All records of ``parts``, section by section."""
        return Sections(
            **{
                name: np.concatenate([part.named(name) for part in parts])
                for name in _DTYPES
                if any(len(part.named(name)) for part in parts)
            }
        )


_DESCRIPTIONS: Final = {name: [[*each] for each in dt.descr] for name, dt in _DTYPES.items()}
"""What a header says about each section, as it comes out of JSON."""

assert tuple(_DTYPES) == tuple(each.name for each in fields(Sections))  # noqa: S101 - wire order


@dataclass(frozen=True, slots=True)
class Batch:
    """What one machine says.

    Attributes:
        job: Job name.
        machine: Sender.
        generation: The machine's generation.
        epoch: Epoch of the records.
        records: Completed operations, dtype ``RECORD``; may be empty (a bare sign of life).
        dropped: Records lost to a full ring buffer since the last batch.
        more: The other sections.
        groups: Ranks of each group as (start, stop, stride) spans, by the CRC-32 of its name;
            said when a group is new, and again from time to time.
    """

    job: str
    machine: str
    generation: int
    epoch: int
    records: Records
    dropped: int = 0
    more: Sections = field(default_factory=Sections)
    groups: Mapping[int, tuple[range, ...]] = field(default_factory=dict)


def span_of(ranks: Iterable[int]) -> tuple[range, ...]:
    """Ranks, in order, as the fewest arithmetic runs that a left-to-right reading finds."""
    left = list(ranks)
    spans = []
    while left:
        stride = left[1] - left[0] if len(left) > 1 else 1
        length = 1
        while length < len(left) and left[length] - left[length - 1] == stride and stride > 0:
            length += 1
        stride = max(stride, 1)
        spans.append(range(left[0], left[length - 1] + 1, stride))
        left = left[length:]
    return tuple(spans)


def encode_batch(batch: Batch) -> bytes:
    """Bytes of ``batch``: header line, newline, sections."""
    names = [*_DTYPES]
    arrays = [batch.records, *(batch.more.named(name) for name in names[1:])]
    header = {
        "v": _VERSION,
        "job": batch.job,
        "machine": batch.machine,
        "generation": batch.generation,
        "epoch": batch.epoch,
        "dropped": batch.dropped,
    }
    if batch.groups:
        header["groups"] = {
            str(group): [[span.start, span.stop, span.step] for span in spans]
            for group, spans in batch.groups.items()
        }
    header["sections"] = [
        {"name": name, "count": len(array), "dtype": _DESCRIPTIONS[name]}
        for name, array in zip(names, arrays, strict=True)
        if len(array)
    ]
    head = json.dumps(header, separators=(",", ":")).encode()
    return b"\n".join((head, b"".join(array.tobytes() for array in arrays)))


def decode_batch(data: bytes) -> Batch:
    """Parse what ``encode_batch`` made.

    Raises:
        MalformedEventError: The header is not ours or the records do not add up.
    """
    if len(data) > _LIMIT:
        raise MalformedEventError(f"telemetry batch of {len(data)} bytes is over {_LIMIT}")
    head, separator, body = data.partition(b"\n")
    try:
        header, counts = _header(head)
        _expect_version(header["v"] if separator else "missing")
        sections = Sections.unpack(body, counts)
        return Batch(
            job=str(header["job"]),
            machine=str(header["machine"]),
            generation=int(header["generation"]),
            epoch=int(header["epoch"]),
            records=sections.records,
            dropped=int(header["dropped"]),
            more=sections,
            groups={
                int(group): tuple(range(*span) for span in spans)
                for group, spans in header.get("groups", {}).items()
            },
        )
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise MalformedEventError(f"telemetry batch does not parse: {error}") from error


def _header(head: bytes) -> tuple[Mapping[str, Any], Mapping[str, int]]:
    """A header, and the number of records in each section."""
    # What the sections look like is most of a header, and the same in most batches of a job.
    start, last, layout = head.rpartition(_SECTIONS)
    if last and layout.endswith(b"]}") and len(layout) <= _KEPT_LAYOUT_BYTES:
        with contextlib.suppress(json.JSONDecodeError):  # something else may stand behind them
            return json.loads(f"{start.decode()}}}"), _layout(layout[:-1])
    header = json.loads(head)
    return header, _counts(header["sections"])


@functools.lru_cache(maxsize=_KEPT_LAYOUTS)
def _layout(sections: bytes) -> Mapping[str, int]:
    return _counts(json.loads(sections))


def _expect_version(version: object) -> None:
    if version != _VERSION:
        raise ValueError(f"version {version!r} is not {_VERSION}")


def _counts(sections: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for section in sections:
        name, count = str(section["name"]), int(section["count"])
        if name not in _DTYPES or count < 0 or name in counts:
            raise ValueError(f"section {name!r} of {count} records is not one of ours")
        if section["dtype"] != _DESCRIPTIONS[name]:
            raise ValueError(f"section {name!r} has another layout: {section['dtype']}")
        counts[name] = count
    if list(counts) != [name for name in _DTYPES if name in counts]:
        raise ValueError(f"sections {list(counts)} are not in their order")
    return counts
