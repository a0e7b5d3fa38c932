"""What stands in front of every message, so that a stale or mismatched peer is noticed at once."""

from __future__ import annotations

import struct
from typing import Final

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover_executor.links.link import Link

__all__ = ["HEADER", "Frame", "HeaderSwap", "check_header"]

HEADER: Final = struct.Struct("<IIQQ")
"""Epoch, tag, sequence, and size of the message in bytes."""

Frame = tuple[int, int, int]
"""(epoch, tag, sequence) of a message; both sides must agree on it."""


def check_header(link: Link, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Hold what came against what this rank is doing.

    Raises:
        StaleEpochError: The peer is at another epoch.
        ProtocolError: The peer is in another collective.
    """
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


class HeaderSwap:
    """The headers of two messages that cross on one link.

    Args:
        link: The link.
        frame: What both messages are.
        out: Bytes of the message that is sent.
        into: Bytes of the one that comes.

    Attributes:
        received: Whether the peer's header came and was right.
    """

    __slots__ = ("_expected", "_got", "_link", "_out", "_room", "received")

    def __init__(self, link: Link, frame: Frame, *, out: int, into: int) -> None:
        self._link = link
        self._out = memoryview(HEADER.pack(*frame, out))
        self._expected = (*frame, into)
        self._room = memoryview(bytearray(HEADER.size))
        self._got = 0
        self.received = False

    @property
    def sent(self) -> bool:
        """Whether this rank's header is on its way."""
        return not self._out

    def advance(self) -> bool:
        """Send and receive what is possible now; True when something moved.

        Raises:
            LinkBrokenError: The link has ended.
            StaleEpochError: The peer is at another epoch.
            ProtocolError: The peer is in another collective.
        """
        moved = 0
        if self._out:
            moved = self._link.send_some(self._out)
            self._out = self._out[moved:]
        if not self.received:
            got = self._link.receive_some(self._room[self._got :])
            self._got += got
            moved += got
            if self._got == HEADER.size:
                check_header(self._link, HEADER.unpack(self._room), self._expected)
                self.received = True
        return moved > 0
