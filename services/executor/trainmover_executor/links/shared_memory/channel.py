"""One message each way over a link that shares memory, at the pace of whoever uses the pieces.

``exchange`` moves a message from its first byte to its last before it looks at another link. A slot
channel shows each piece where it lies in the shared slots and keeps it there until it is given
back, so that pieces of several links can be combined with each other without a copy.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from trainmover_executor.links.header import Frame, HeaderSwap
from trainmover_executor.links.link import (
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
from trainmover_executor.links.shared_memory.slots import SLOT_BYTES

__all__ = ["SlotChannel", "cut", "wait_for"]


def cut(message: memoryview) -> list[memoryview]:
    """``message`` in pieces of one slot each; none of an empty one."""
    return [message[at : at + SLOT_BYTES] for at in range(0, len(message), SLOT_BYTES)]


class SlotChannel:
    """See the module's docstring.

    Args:
        link: A link with shared memory.
        frame: What both messages are.
        out: Pieces to send, in this order.
        ready: How many of them may be sent by now.
        sizes: Bytes of each piece that comes.

    Attributes:
        got: Pieces that were given back.
    """

    __slots__ = (
        "_ended",
        "_headers",
        "_incoming",
        "_out",
        "_outgoing",
        "_ready",
        "_sent",
        "_sizes",
        "got",
        "link",
    )

    def __init__(
        self,
        link: Link,
        frame: Frame,
        *,
        out: Sequence[memoryview],
        ready: int,
        sizes: Sequence[int],
    ) -> None:
        assert link.shared is not None  # noqa: S101 - whoever chose a channel looked
        self._outgoing, self._incoming = link.shared.rings()
        self._headers = HeaderSwap(link, frame, out=sum(map(len, out)), into=sum(sizes))
        self._out = out
        self._sizes = sizes
        self._sent = 0
        self._ended = False
        self._ready = ready
        self.link = link
        self.got = 0

    @property
    def complete(self) -> bool:
        """Whether both messages are over."""
        headers = self._headers
        over = self.got == len(self._sizes) and self._sent == len(self._out)
        return over and headers.received and headers.sent

    @property
    def hungry(self) -> bool:
        """Whether something is to come and nothing was there at the last look.

        Not whether something is there by now: looking again would silence the bell that wakes.
        """
        if not self._headers.received:
            return True
        return self.got < len(self._sizes) and not self._incoming.seen

    def advance(self) -> bool:
        """Send what is ready and fits, and look whether the peer is here; True if that changed.

        Raises:
            LinkBrokenError: The link has ended.
            StaleEpochError: The peer is at another epoch.
            ProtocolError: The peer is in another collective.
        """
        moved = self._headers.advance()
        while self._sent < self._ready and self._outgoing.put(self._out[self._sent]):
            self.link.counters[SENT_BYTES] += len(self._out[self._sent])
            self._sent += 1
            self.link.counters[SENT_MESSAGES] += self._sent == len(self._out)
            moved = True
        return moved

    def allow(self) -> None:
        """One more piece is ready to be sent, if there is one."""
        self._ready = min(self._ready + 1, len(self._out))

    def piece(self) -> memoryview | None:
        """The next piece that came, writable, valid until ``give_back``; None if none is there."""
        if not self._headers.received or self.got == len(self._sizes):
            return None
        return self._incoming.take(self._sizes[self.got])

    def give_back(self) -> None:
        """What ``piece`` returned is not needed any more."""
        self._incoming.give_back()
        self.link.counters[RECEIVED_BYTES] += self._sizes[self.got]
        self.got += 1
        self.link.counters[RECEIVED_MESSAGES] += self.got == len(self._sizes)

    def register(self, poller: select.poll, *, for_input: bool) -> None:
        """Have ``poller`` wake when this channel can go on, or its peer is gone."""
        headers = self._headers
        if not self._ended:
            events = select.POLLRDHUP
            events |= 0 if headers.sent else select.POLLOUT
            events |= select.POLLIN if for_input and not headers.received else 0
            poller.register(self.link.fd, events)
        if for_input and headers.received:
            poller.register(self._incoming.wake_fd, select.POLLIN)
        if self._sent < self._ready:
            poller.register(self._outgoing.wake_fd, select.POLLIN)

    def end(self) -> None:
        """The peer's socket has ended; it may have, once all it had to say is here.

        Raises:
            LinkBrokenError: More was to come, or to go.
        """
        self._headers.advance()
        missing = len(self._sizes) - self.got
        if self._sent < len(self._out) or (missing and self._incoming.count() < missing):
            raise LinkBrokenError(f"rank {self.link.peer} ended its link")
        self._ended = True

    def waited(self, nanoseconds: int) -> None:
        """Note time in which nothing moved."""
        if self._sent < self._ready:
            self.link.counters[SEND_BLOCKED_NS] += nanoseconds
        if not self._headers.received:
            self.link.counters[WAIT_NS] += nanoseconds


def wait_for(channels: Sequence[SlotChannel], *, stall_timeout_s: float) -> None:
    """Sleep until one of ``channels`` can go on, when none of them can.

    Waking is what costs most where ranks share cores, so of the channels that lack a piece only the
    first wakes: whoever needs all of them gains nothing from the others. Every channel that has
    something to send does, or ranks could wait for each other in a circle.

    Raises:
        LinkBrokenError: A link ended, or nothing moved in time.
    """
    poller = select.poll()
    running = [channel for channel in channels if not channel.complete]
    awaited = next((channel for channel in running if channel.hungry), None)
    for channel in running:
        channel.register(poller, for_input=channel is awaited)
    started = time.perf_counter_ns()
    events = dict(poller.poll(stall_timeout_s * 1000))
    waited = time.perf_counter_ns() - started
    if not events:
        peers = sorted(channel.link.peer for channel in running)
        raise LinkBrokenError(
            f"nothing moved on the links to ranks {peers} for {stall_timeout_s:.0f} s"
        )
    for channel in running:
        channel.waited(waited)
        if events.get(channel.link.fd, 0) & ENDED:
            channel.end()
