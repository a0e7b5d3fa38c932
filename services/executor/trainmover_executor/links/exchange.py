"""Moves one message each way over links, at the same time, without a thread of its own.

Every message begins with a frame header that carries epoch, tag, sequence and size, so that a stale
or mismatched peer is noticed at once instead of being added into a gradient. One loop sends and
receives without blocking, which keeps two large messages that cross from dead-locking and saves the
thread hop of small ones. Between ranks of one host the bytes of large messages go through shared
slots, and what is combined is combined straight from there.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from trainmover.errors import ProtocolError
from trainmover_executor.links.header import HEADER, Frame, check_header
from trainmover_executor.links.link import (
    BODY_BYTES,
    BODY_NS,
    ENDED,
    RECEIVED_BYTES,
    RECEIVED_MESSAGES,
    SEND_BLOCKED_NS,
    SENT_BYTES,
    SENT_MESSAGES,
    WAIT_NS,
    Link,
    LinkBrokenError,
)
from trainmover_executor.links.shared_memory.slots import SLOT_BYTES, SlotRing, copy_bytes

__all__ = ["PIECE_BYTES", "Consume", "Watch", "exchange", "swap"]

PIECE_BYTES: Final = 128 * 1024
"""Largest staging piece; it stays in the cache, also where many ranks share that."""

_INLINE_BYTES: Final = 32 * 1024
"""Up to here a message is one write to the socket, header included: syscalls are what it costs."""

Consume = Callable[[int, memoryview], None]
"""Takes in a piece of a message: its offset in the message and its bytes, valid during the call."""

Watch = Callable[[int], None]
"""Told how many bytes of a message have moved so far, while they are still in the cache."""


class _Outbound:
    """Sending side of one message."""

    __slots__ = ("_data", "_queue", "_ring", "_size", "_watch", "link")

    def __init__(
        self, link: Link, frame: Frame, data: memoryview, watch: Watch | None = None
    ) -> None:
        self.link = link
        self._watch = watch
        self._size = size = len(data)
        header = HEADER.pack(*frame, size)
        self._ring: SlotRing | None = None
        self._data = memoryview(b"")  # what goes through shared slots, after the queue is empty
        if size <= _INLINE_BYTES:
            self._queue = [memoryview(header + bytes(data) if size else header)]
        elif link.shared is None:
            self._queue = [memoryview(header), data]
        else:
            self._queue = [memoryview(header)]
            self._ring = link.shared.rings()[0]
            self._data = data

    @property
    def complete(self) -> bool:
        return not self._queue and not self._data

    def advance(self) -> bool:
        """Send what can be sent now; True when something was."""
        sent = self._advance_queue() if self._queue else self._advance_ring()
        self.link.counters[SENT_BYTES] += sent
        return sent > 0

    def _advance_queue(self) -> int:
        sent = self.link.send_some(self._queue[0])
        if sent == len(self._queue[0]):
            del self._queue[0]
        elif sent:
            self._queue[0] = self._queue[0][sent:]
        if self._watch is not None and self._ring is None:
            # Less than nothing while the header is on its way.
            self._watch(max(0, self._size - sum(map(len, self._queue))))
        return sent

    def _advance_ring(self) -> int:
        if self._ring is None:
            return 0
        watch = None
        if self._watch is not None:
            watch = partial(_from, self._size - len(self._data), self._watch)
        put = self._ring.put(self._data, watch)
        self._data = self._data[put:]
        return put

    def wants(self) -> tuple[int, int]:
        """(descriptor, poll events) that let it go on."""
        if self._queue or self._ring is None:
            return self.link.fd, select.POLLOUT
        return self._ring.wake_fd, select.POLLIN


class _Inbound:
    """Receiving side of one message: header first, then pieces."""

    __slots__ = (
        "_consume",
        "_frame",
        "_got_header",
        "_header",
        "_limit",
        "_ring",
        "_started_ns",
        "_watch",
        "done",
        "link",
        "size",
        "staging",
        "started",
    )

    def __init__(
        self,
        link: Link,
        frame: Frame,
        size: int,
        staging: memoryview,
        consume: Consume | None = None,
        *,
        limit: int = 0,
        watch: Watch | None = None,
    ) -> None:
        self.link = link
        self.size = size
        self.staging = staging
        self.done = 0
        self.started = False
        self._frame = frame
        self._consume = consume
        self._header = memoryview(bytearray(HEADER.size))
        self._got_header = 0
        self._started_ns = 0
        self._limit = limit
        self._watch = watch
        self._ring: SlotRing | None = None

    @property
    def complete(self) -> bool:
        return self.started and self.done == self.size

    def count(self) -> None:
        """The message is complete: note what it took."""
        counters = self.link.counters
        counters[RECEIVED_MESSAGES] += 1
        if self.size > _INLINE_BYTES:
            counters[BODY_NS] += time.perf_counter_ns() - self._started_ns
            counters[BODY_BYTES] += self.size

    def advance(self) -> bool:
        """Take in what is there; True when something was."""
        before = self.done
        if not self.started:
            return self._advance_header()
        moved = self._advance_body()
        self.link.counters[RECEIVED_BYTES] += self.done - before
        if self._watch is not None and self._ring is None:
            self._watch(self.done)
        return moved

    def _advance_body(self) -> bool:
        if self._ring is not None:
            return self._advance_slot(self._ring)
        if self._consume is None:
            got = self.link.receive_some(self.staging[self.done : self.size])
            self.done += got
            return got > 0
        # Staged: fill one piece, hand it over, reuse the same cache-warm bytes.
        offset = self.done % PIECE_BYTES
        piece = min(PIECE_BYTES, self.size - (self.done - offset))
        got = self.link.receive_some(self.staging[offset:piece])
        self.done += got
        if got and offset + got == piece:
            self._consume(self.done - piece, self.staging[:piece])
        return got > 0

    def _advance_slot(self, ring: SlotRing) -> bool:
        piece = ring.take(min(SLOT_BYTES, self.size - self.done))
        if piece is None:
            return False
        if self._consume is not None:
            self._consume(self.done, piece)
        else:
            target = np.frombuffer(self.staging[self.done : self.done + len(piece)], np.uint8)
            watch = partial(_from, self.done, self._watch) if self._watch is not None else None
            copy_bytes(target, piece, watch)
        self.done += len(piece)
        ring.give_back()
        return True

    def _advance_header(self) -> bool:
        got = self.link.receive_some(self._header[self._got_header :])
        self._got_header += got
        self.link.counters[RECEIVED_BYTES] += got
        if self._got_header == HEADER.size:
            epoch, tag, sequence, size = HEADER.unpack(self._header)
            if self._limit:
                self._accept(size)
            check_header(self.link, (epoch, tag, sequence, size), (*self._frame, self.size))
            self.started = True
            self._started_ns = time.perf_counter_ns() if self.size > _INLINE_BYTES else 0
            if self.size > _INLINE_BYTES and self.link.shared is not None:
                self._ring = self.link.shared.rings()[1]
        return got > 0

    def _accept(self, size: int) -> None:
        """The sender decides the size, up to the limit."""
        if size > self._limit:
            raise ProtocolError(
                f"rank {self.link.peer} announces {size} bytes, the limit is {self._limit}"
            )
        self.size = size
        self.staging = memoryview(bytearray(size))

    def wants(self) -> tuple[int, int]:
        """(descriptor, poll events) that let it go on."""
        if self._ring is None:
            return self.link.fd, select.POLLIN
        return self._ring.wake_fd, select.POLLIN


def _from(begin: int, watch: Watch, count: int) -> None:
    watch(begin + count)


def exchange(
    *,
    frame: Frame,
    out: tuple[Link, memoryview] | None = None,
    into: tuple[Link, int, memoryview] | None = None,
    consume: Consume | None = None,
    watch: Watch | None = None,
    stall_timeout_s: float,
) -> None:
    """Send one message and receive another at the same time.

    Args:
        frame: What both messages are.
        out: Link and bytes to send.
        into: Link, size in bytes, and where to receive: the whole destination when ``consume`` is
            None, else a staging buffer of at least min(size, ``PIECE_BYTES``) bytes.
        consume: Called with each piece as it is complete; pieces begin at multiples of 16 bytes.
        watch: Called after each piece; for a message one way.
        stall_timeout_s: Give up when nothing moved for so long.

    Raises:
        LinkBrokenError: A link ended or stalled.
        StaleEpochError: The peer is at another epoch.
        ProtocolError: The peer is in another collective.
    """
    outbound = inbound = None
    if out is not None:
        outbound = _Outbound(out[0], frame, out[1], watch)
    if into is not None:
        inbound = _Inbound(into[0], frame, into[1], into[2], consume, watch=watch)
    _run(outbound, inbound, stall_timeout_s)


def swap(
    *,
    frame: Frame,
    out: tuple[Link, memoryview] | None,
    source: Link,
    limit: int,
    stall_timeout_s: float,
) -> memoryview:
    """Send one message and receive another whose size its sender decides.

    Args:
        frame: What both messages are.
        out: Link and bytes to send; None to receive only.
        source: Link to receive from.
        limit: Most bytes that are accepted.
        stall_timeout_s: Give up when nothing moved for so long.

    Raises:
        LinkBrokenError: A link ended or stalled.
        StaleEpochError: The peer is at another epoch.
        ProtocolError: The peer is in another collective, or announces more than ``limit``.
    """
    inbound = _Inbound(source, frame, 0, memoryview(b""), limit=limit)
    outbound = _Outbound(out[0], frame, out[1]) if out is not None else None
    _run(outbound, inbound, stall_timeout_s)
    return inbound.staging


def _run(outbound: _Outbound | None, inbound: _Inbound | None, stall_timeout_s: float) -> None:
    if outbound is not None and outbound.complete:
        outbound = None
    while outbound is not None or inbound is not None:
        moved = False
        if outbound is not None:
            moved = outbound.advance()
            if outbound.complete:
                outbound.link.counters[SENT_MESSAGES] += 1
                outbound = None
        if inbound is not None:
            moved |= inbound.advance()
            if inbound.complete:
                inbound.count()
                inbound = None
        if not moved:
            _wait(outbound, inbound, stall_timeout_s)


def _wait(outbound: _Outbound | None, inbound: _Inbound | None, timeout_s: float) -> None:
    sides = [side for side in (inbound, outbound) if side is not None]
    wanted: dict[int, int] = {}
    for side in sides:
        # The end of the process at the other side shows on the socket, whatever we wait for.
        wanted[side.link.fd] = wanted.get(side.link.fd, 0) | select.POLLRDHUP
        fd, events = side.wants()
        wanted[fd] = wanted.get(fd, 0) | events
    poller = select.poll()
    for fd, events in wanted.items():
        poller.register(fd, events)
    start = time.perf_counter_ns()
    ready = dict(poller.poll(timeout_s * 1000))
    waited = time.perf_counter_ns() - start
    if outbound is not None:
        outbound.link.counters[SEND_BLOCKED_NS] += waited
    if inbound is not None and not inbound.started:
        inbound.link.counters[WAIT_NS] += waited
    if not ready:
        peers = sorted({side.link.peer for side in sides})
        raise LinkBrokenError(f"nothing moved on the links to ranks {peers} for {timeout_s:.0f} s")
    for side in sides:
        fd, _ = side.wants()
        # What was sent before the end is still taken in; a socket tells its end by itself.
        if fd != side.link.fd and fd not in ready and ready.get(side.link.fd, 0) & ENDED:
            raise LinkBrokenError(f"rank {side.link.peer} ended its link")
