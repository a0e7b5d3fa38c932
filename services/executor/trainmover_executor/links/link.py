"""One duplex link between two ranks: a socket, and on one host memory that both ends share."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import Final

from trainmover.errors import ProtocolError
from trainmover_executor.links.shared_memory.slots import SharedMemory, SharedSocket

__all__ = ["COUNTERS", "ENDED", "Link", "LinkBrokenError"]

_TCP_INFO: Final = struct.Struct("=68xI28xI")
"""``tcpi_rtt`` and ``tcpi_total_retrans`` of Linux's ``struct tcp_info``."""

ENDED: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR
"""What ``poll`` says of a link's socket when the other end is gone."""

COUNTERS: Final = (
    "sent_messages",
    "sent_bytes",
    "send_blocked_ns",
    "received_messages",
    "received_bytes",
    "wait_ns",
    "body_ns",
    "body_bytes",
)
"""Names of a link's counters: fields of ``trainmover.telemetry.records.LINK``."""
SENT_MESSAGES, SENT_BYTES, SEND_BLOCKED_NS = 0, 1, 2
RECEIVED_MESSAGES, RECEIVED_BYTES, WAIT_NS, BODY_NS, BODY_BYTES = 3, 4, 5, 6, 7


class LinkBrokenError(ProtocolError):
    """The link ended, was aborted, or made no progress in time."""


class Link:
    """One connected socket to ``peer``.

    Attributes:
        peer: Global rank at the other side.
        group: Group whose traffic it carries.
        shared: Memory shared with the peer, for large messages; None between hosts.
        counters: What went over it so far, in the order of ``COUNTERS``; for detection.
    """

    __slots__ = ("_sock", "counters", "fd", "group", "peer", "shared")

    def __init__(self, sock: socket.socket, *, peer: int, group: str) -> None:
        sock.setblocking(False)
        self.shared: SharedMemory | None = None
        if isinstance(sock, SharedSocket):
            self.shared = sock.shared
        else:
            # Buffers of a fixed size would keep Linux from fitting them to the path. That is faster
            # within a host, where they stay in the cache, and between hosts that are far apart.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.group = group
        self.counters = [0] * len(COUNTERS)

    def __repr__(self) -> str:
        return f"Link(peer={self.peer}, group={self.group!r})"

    def kernel_view(self) -> tuple[int, int]:
        """(round-trip time in microseconds, retransmitted segments); zeros where unknown."""
        if self.shared is not None:
            return 0, 0
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:
            return 0, 0
        if len(info) < _TCP_INFO.size:
            return 0, 0
        round_trip, retransmits = _TCP_INFO.unpack(info)
        return round_trip, retransmits

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

    def release_memory(self) -> None:
        """Give shared memory back: nothing large will come over this link any more."""
        if self.shared is not None:
            self.shared.close()

    def shutdown(self) -> None:
        """End the link from any thread; whoever is blocked on it gets ``LinkBrokenError``."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the link and give the descriptor back; only when no thread uses it any more."""
        self.shutdown()
        self._sock.close()
