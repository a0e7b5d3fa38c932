"""Watch links: a ring of idle links on which the death or the abort of a neighbour is heard.

They carry no tensors, so they are never shut down to unblock a collective: when one ends without a
goodbye, the process at the other side is gone. That makes the end of a watch link evidence, which
the end of a data link is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trainmover.errors import ProtocolError

__all__ = ["Notice", "NoticeKind", "WatchLink"]

_NOTICE: Final = struct.Struct("<BIi160s")


class NoticeKind(enum.IntEnum):
    """What a notice says."""

    ABORT = 1
    GOODBYE = 2


@dataclass(frozen=True, slots=True)
class Notice:
    """One message on a watch link.

    Attributes:
        kind: What it says.
        epoch: Epoch of the step that is broken (ABORT).
        origin: Rank that met the error first.
        reason: The error, shortened to 160 bytes.
    """

    kind: NoticeKind
    epoch: int
    origin: int
    reason: str = ""

    def pack(self) -> bytes:
        """The notice's bytes."""
        return _NOTICE.pack(self.kind, self.epoch, self.origin, self.reason.encode()[:160])

    @staticmethod
    def parse(data: bytes) -> Notice:
        """Parse a notice.

        Raises:
            ProtocolError: Unknown kind.
        """
        kind, epoch, origin, reason = _NOTICE.unpack(data)
        try:
            return Notice(
                NoticeKind(kind), epoch, origin, reason.rstrip(b"\0").decode(errors="replace")
            )
        except ValueError:
            raise ProtocolError(f"unknown notice {kind} on a watch link") from None


class WatchLink:
    """One watch link, owned by the control thread.

    Args:
        sock: Connected socket.
        peer: Global rank at the other side.
        epoch: Epoch at which the link was made: it watches the process that held the rank then.
        heard: Called with each notice.
        lost: Called when the peer's process is gone: the link ended without a goodbye.

    Attributes:
        socket: The connected socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        peer: int,
        heard: Callable[[Notice], None],
        epoch: int,
        lost: Callable[[WatchLink], None],
    ) -> None:
        self.peer = peer
        self.epoch = epoch
        self.socket = sock
        self._heard = heard
        self._lost = lost
        self._closed = False
        self._listening = False
        self._said_goodbye = False

    async def listen(self) -> None:
        """Hear notices until the link ends."""
        loop = asyncio.get_running_loop()
        data = b""
        self._listening = True
        try:
            while piece := await loop.sock_recv(self.socket, _NOTICE.size - len(data)):
                data += piece
                if len(data) == _NOTICE.size:
                    notice, data = Notice.parse(data), b""
                    if notice.kind is NoticeKind.GOODBYE:
                        self._said_goodbye = True
                    else:
                        self._heard(notice)
        except (OSError, ProtocolError):
            pass
        finally:
            self._listening = False
            if not self._closed and not self._said_goodbye:
                self._lost(self)
            self._closed = True
            self.socket.close()

    def tell(self, notice: Notice) -> None:
        """Send a notice at once; a link that cannot take it is ending anyway."""
        try:
            self.socket.send(notice.pack())
        except OSError:
            return

    def close(self) -> None:
        """End the link without anybody being blamed on this side."""
        if self._closed:
            return
        self._closed = True
        if self._listening:  # it hears the end, and closes the socket: nobody else would wake it
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        else:
            self.socket.close()
