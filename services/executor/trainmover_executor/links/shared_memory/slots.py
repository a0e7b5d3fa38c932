"""Memory shared by the two ends of a link on one host, with doorbells the kernel carries.

The caller makes one sealed memory file and four event descriptors and sends them with its link
request over a unix socket. Each direction is a ring of slots: the writer fills a slot and rings
``filled``, the reader uses the bytes where they lie and rings ``freed``. Everything else (frame
headers, small messages, the end of a process) goes over the socket, so that shutting the socket
down still ends whoever is blocked. Untouched slots take no memory: a parked link costs nothing
(INV-BYTES).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import threading
from collections.abc import Callable
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from trainmover.errors import ProtocolError

__all__ = ["FD_COUNT", "SLOT_BYTES", "SharedMemory", "SharedSocket", "SlotRing", "copy_bytes"]

SLOT_BYTES: Final = 2 * 1024 * 1024
"""One slot: smaller ones cost more doorbells, each a change of processes where ranks share cores;
larger ones show in a stayer's peak memory over a move (ADR 5)."""

_SLOTS: Final = 2
_RING_BYTES: Final = SLOT_BYTES * _SLOTS
_CACHED_BYTES: Final = 256 * 1024
"""What a core still has in its cache after it copied it."""

FD_COUNT: Final = 5
"""The memory file, then (filled, freed) of the caller's and of the callee's direction."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Bytes = npt.NDArray[np.uint8]


class SlotRing:
    """One direction of a link's shared memory; used by its writer or by its reader.

    Attributes:
        wake_fd: Readable when ``put`` (at the writer) or ``take`` (at the reader) can go on.
    """

    __slots__ = ("_available", "_next", "_ring_fd", "_slots", "wake_fd")

    def __init__(self, memory: Bytes, *, filled_fd: int, freed_fd: int, writes: bool) -> None:
        self._slots = list(memory.reshape(_SLOTS, SLOT_BYTES))
        self._next = 0
        self._available = _SLOTS if writes else 0
        self.wake_fd = freed_fd if writes else filled_fd
        self._ring_fd = filled_fd if writes else freed_fd

    def _ready(self) -> bool:
        return self._available > 0 or self.count() > 0

    @property
    def seen(self) -> int:
        """Slots that were free or filled at the last look."""
        return self._available

    def count(self) -> int:
        """Slots that are free (at the writer) or filled (at the reader) now."""
        with contextlib.suppress(BlockingIOError):
            self._available += os.eventfd_read(self.wake_fd)
        return self._available

    def put(self, data: memoryview, watch: Callable[[int], None] | None = None) -> int:
        """Copy the beginning of ``data`` into the next slot; its length, 0 when none is free.

        Args:
            data: What is to be sent.
            watch: Told how many bytes of ``data`` were copied so far.
        """
        if not self._ready():
            return 0
        count = min(len(data), SLOT_BYTES)
        copy_bytes(self._slots[self._next][:count], data[:count], watch)
        self._advance()
        return count

    def take(self, count: int) -> memoryview | None:
        """The next filled slot's first ``count`` bytes, valid until ``give_back``; None if none."""
        return self._slots[self._next][:count].data if self._ready() else None

    def give_back(self) -> None:
        """The slot that ``take`` returned is not needed any more."""
        self._advance()

    def _advance(self) -> None:
        self._next = (self._next + 1) % _SLOTS
        self._available -= 1
        os.eventfd_write(self._ring_fd, 1)


class SharedMemory:
    """What the two ends of a link share; mapped at first use.

    Args:
        fds: ``FD_COUNT`` descriptors, owned by this object from now on.
        caller: Whether this is the end that made the link.

    Raises:
        ProtocolError: The memory file is not what a caller of ours makes.
    """

    def __init__(self, fds: list[int], *, caller: bool) -> None:
        self._fds = fds
        self._caller = caller
        self._map: mmap.mmap | None = None
        self._rings: tuple[SlotRing, SlotRing] | None = None
        self._maps = threading.Lock()
        try:
            sound = (
                len(fds) == FD_COUNT
                and os.fstat(fds[0]).st_size == 2 * _RING_BYTES
                # A peer that could shrink the file could kill us with SIGBUS.
                and fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & _SEALS == _SEALS
            )
        except OSError:
            sound = False
        if not sound:
            self.close()
            raise ProtocolError("the caller of a link sent something else than shared memory")

    @classmethod
    def create(cls) -> Self:
        """The caller's end of new shared memory.

        Raises:
            OSError: No descriptors are left.
        """
        fds: list[int] = []
        try:
            fds.append(os.memfd_create("trainmover-link", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(fds[0], 2 * _RING_BYTES)
            fcntl.fcntl(fds[0], fcntl.F_ADD_SEALS, _SEALS)
            while len(fds) < FD_COUNT:
                fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        except BaseException:
            _close_all(fds)
            raise
        return cls(fds, caller=True)

    @property
    def fds(self) -> list[int]:
        """What to send to the callee."""
        return list(self._fds)

    def rings(self) -> tuple[SlotRing, SlotRing]:
        """(the one to write, the one to read)."""
        if self._rings is None:
            # One thread sends and another receives: a second pair would begin at the first slot.
            with self._maps:
                self._rings = self._rings or self._mapped()
        return self._rings

    def _mapped(self) -> tuple[SlotRing, SlotRing]:
        self._map = mmap.mmap(self._fds[0], 2 * _RING_BYTES)
        memory = np.frombuffer(self._map, np.uint8)
        mine, theirs = memory[:_RING_BYTES], memory[_RING_BYTES:]
        first, second = self._fds[1:3], self._fds[3:5]
        if not self._caller:
            mine, theirs, first, second = theirs, mine, second, first
        return (
            SlotRing(mine, filled_fd=first[0], freed_fd=first[1], writes=True),
            SlotRing(theirs, filled_fd=second[0], freed_fd=second[1], writes=False),
        )

    def close(self) -> None:
        """Give everything back; the memory goes when the last view of it does."""
        self._rings = self._map = None
        fds, self._fds = self._fds, []
        _close_all(fds)


class SharedSocket(socket.socket):
    """A unix socket whose two ends share memory as well."""

    def __init__(self, sock: socket.socket, shared: SharedMemory) -> None:
        super().__init__(fileno=sock.detach())
        self.shared = shared

    def close(self) -> None:
        """Close the socket and give the memory back."""
        super().close()
        self.shared.close()


def copy_bytes(into: Bytes, data: memoryview, watch: Callable[[int], None] | None = None) -> None:
    """Copy ``data``; ``watch`` is told how much is copied, while it is in the cache."""
    # numpy's copy lets other threads run meanwhile; a memoryview's would not.
    source = np.frombuffer(data, np.uint8)
    if watch is None:
        np.copyto(into, source)
        return
    for start in range(0, len(source), _CACHED_BYTES):
        end = min(start + _CACHED_BYTES, len(source))
        np.copyto(into[start:end], source[start:end])
        watch(end)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
