"""One duplex link between two ranks, and the pump that moves bytes both ways at once.

Every message carries a frame header with epoch, sequence and size, so that a stale or mismatched
peer is noticed at once instead of being added into a gradient. The pump owns no thread: one loop
sends and receives on non-blocking sockets, which keeps two large messages that cross from
dead-locking and saves the thread hop of small ones.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from trainmover.errors import ProtocolError, StaleEpochError

__all__ = ["PIECE_BYTES", "Frame", "Link", "LinkBrokenError", "pump", "swap"]

PIECE_BYTES: Final = 512 * 1024
"""Largest staging piece; it stays in the cache (bigger pieces cost 20 % of the bandwidth)."""

_SOCKET_BUFFER_BYTES: Final = 4 * 1024 * 1024
_ONE_SEGMENT_BYTES: Final = 32 * 1024
_HEADER: Final = struct.Struct("<IIQQ")

Frame = tuple[int, int, int]
"""(epoch, tag, sequence) of a message; both sides must agree on it."""


class LinkBrokenError(ProtocolError):
    """The link ended, was aborted, or made no progress in time."""


class Link:
    """One connected TCP socket to ``peer``.

    Attributes:
        peer: Global rank at the other side.
        group: Group whose traffic it carries.
        blocked_ns: Nanoseconds this side waited for the peer, for detection.
    """

    __slots__ = ("_header_in", "_sock", "blocked_ns", "fd", "group", "peer")

    def __init__(self, sock: socket.socket, *, peer: int, group: str) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        self._sock = sock
        self._header_in = memoryview(bytearray(_HEADER.size))
        self.fd = sock.fileno()
        self.peer = peer
        self.group = group
        self.blocked_ns = 0

    def __repr__(self) -> str:
        return f"Link(peer={self.peer}, group={self.group!r})"

    @property
    def socket(self) -> socket.socket:
        """The socket itself."""
        return self._sock

    def send_some(self, data: memoryview) -> int:
        """Send what fits now; 0 when nothing does.

        Raises:
            LinkBrokenError: The link has ended.
        """
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkBrokenError(
                f"link to rank {self.peer} broke while sending: {error}"
            ) from None

    def receive_some(self, into: memoryview) -> int:
        """Receive what is there now; 0 when nothing is.

        Raises:
            LinkBrokenError: The link has ended.
        """
        try:
            count = self._sock.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkBrokenError(
                f"link to rank {self.peer} broke while receiving: {error}"
            ) from None
        if count == 0:
            raise LinkBrokenError(f"rank {self.peer} ended its link")
        return count

    def shutdown(self) -> None:
        """End the link from any thread; whoever is blocked on it gets ``LinkBrokenError``."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the link and give the descriptor back; only when no thread uses it any more."""
        self.shutdown()
        self._sock.close()


class _Inbound:
    """Receiving side of one message: header first, then pieces."""

    __slots__ = (
        "_consume",
        "_frame",
        "_got_header",
        "_limit",
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
        consume: Callable[[int, int], None] | None = None,
        *,
        limit: int = 0,
    ) -> None:
        self.link = link
        self.size = size
        self.staging = staging
        self.done = 0
        self.started = False
        self._frame = frame
        self._consume = consume
        self._got_header = 0
        self._limit = limit

    def advance(self) -> bool:
        """Take in what is there; True when something was."""
        if not self.started:
            return self._advance_header()
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
            self._consume(self.done - piece, piece)
        return got > 0

    def _advance_header(self) -> bool:
        header = self.link._header_in  # noqa: SLF001 - the pump is the link's other half
        got = self.link.receive_some(header[self._got_header :])
        self._got_header += got
        if self._got_header == _HEADER.size:
            epoch, tag, sequence, size = _HEADER.unpack(header)
            if self._limit:
                self._accept(size)
            _check(self.link, (epoch, tag, sequence, size), (*self._frame, self.size))
            self.started = True
        return got > 0

    def _accept(self, size: int) -> None:
        """The sender decides the size, up to the limit."""
        if size > self._limit:
            raise ProtocolError(
                f"rank {self.link.peer} announces {size} bytes, the limit is {self._limit}"
            )
        self.size = size
        self.staging = memoryview(bytearray(size))

    @property
    def complete(self) -> bool:
        return self.started and self.done == self.size


def _check(link: Link, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if got == expected:
        return
    if got[0] != expected[0]:
        raise StaleEpochError(
            f"rank {link.peer} sent a message of epoch {got[0]} in epoch {expected[0]} "
            f"of group {link.group!r}"
        )
    raise ProtocolError(
        f"rank {link.peer} is in another collective of group {link.group!r}: it sent "
        f"(tag, sequence, bytes) {got[1:]}, this rank expects {expected[1:]}. "
        "Do all ranks issue the same collectives in the same order?"
    )


def pump(
    *,
    frame: Frame,
    out: tuple[Link, memoryview] | None = None,
    into: tuple[Link, int, memoryview] | None = None,
    consume: Callable[[int, int], None] | None = None,
    stall_timeout_s: float,
) -> None:
    """Send one message and receive another at the same time.

    Args:
        frame: What both messages are.
        out: Link and bytes to send.
        into: Link, size in bytes, and where to receive: the whole destination when ``consume`` is
            None, else a staging buffer of at least min(size, ``PIECE_BYTES``) bytes.
        consume: Called with (offset, length) each time a staged piece is complete.
        stall_timeout_s: Give up when nothing moved for so long.

    Raises:
        LinkBrokenError: A link ended or stalled.
        StaleEpochError: The peer is at another epoch.
        ProtocolError: The peer is in another collective.
    """
    inbound = _Inbound(into[0], frame, into[1], into[2], consume) if into is not None else None
    _run(frame, out, inbound, stall_timeout_s)


def swap(
    *,
    frame: Frame,
    out: tuple[Link, memoryview],
    source: Link,
    limit: int,
    stall_timeout_s: float,
) -> memoryview:
    """Send one message and receive another whose size its sender decides.

    Args:
        frame: What both messages are.
        out: Link and bytes to send.
        source: Link to receive from.
        limit: Most bytes that are accepted.
        stall_timeout_s: Give up when nothing moved for so long.

    Raises:
        LinkBrokenError: A link ended or stalled.
        StaleEpochError: The peer is at another epoch.
        ProtocolError: The peer is in another collective, or announces more than ``limit``.
    """
    inbound = _Inbound(source, frame, 0, memoryview(b""), limit=limit)
    _run(frame, out, inbound, stall_timeout_s)
    return inbound.staging


def _run(
    frame: Frame,
    out: tuple[Link, memoryview] | None,
    inbound: _Inbound | None,
    stall_timeout_s: float,
) -> None:
    outbox: list[memoryview] = []
    if out is not None:
        header = _HEADER.pack(*frame, len(out[1]))
        outbox = [memoryview(header), out[1]] if len(out[1]) else [memoryview(header)]
        if 0 < len(out[1]) <= _ONE_SEGMENT_BYTES:
            # One segment, one wake-up of the peer: what a small message costs is its syscalls.
            outbox = [memoryview(header + bytes(out[1]))]
    while outbox or (inbound is not None and not inbound.complete):
        moved = False
        if outbox and out is not None:
            sent = out[0].send_some(outbox[0])
            moved = sent > 0
            if sent == len(outbox[0]):
                del outbox[0]
            elif sent:
                outbox[0] = outbox[0][sent:]
        if inbound is not None and not inbound.complete:
            moved |= inbound.advance()
        if not moved:
            _wait(out[0] if outbox and out else None, inbound, stall_timeout_s)


def _wait(sender: Link | None, inbound: _Inbound | None, timeout_s: float) -> None:
    receiver = inbound.link if inbound is not None and not inbound.complete else None
    wanted: dict[int, int] = {}
    if sender is not None:
        wanted[sender.fd] = select.POLLOUT
    if receiver is not None:
        wanted[receiver.fd] = wanted.get(receiver.fd, 0) | select.POLLIN
    poller = select.poll()
    for fd, events in wanted.items():
        poller.register(fd, events)
    start = time.perf_counter_ns()
    ready = poller.poll(timeout_s * 1000)
    waited = receiver or sender
    if waited is not None:
        waited.blocked_ns += time.perf_counter_ns() - start
    if not ready:
        peers = sorted({link.peer for link in (sender, receiver) if link is not None})
        raise LinkBrokenError(f"nothing moved on the links to ranks {peers} for {timeout_s:.0f} s")
