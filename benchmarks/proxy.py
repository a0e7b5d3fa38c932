"""A TCP proxy between ranks, whose connections can be narrowed or stopped in one direction.

Whom a connection joins it learns as the callee does: from the link request at the
beginning of every link.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

from trainmover_executor.links.dialling.handshake import REQUEST_SIZE, LinkRequest

PREFACE = struct.Struct("<H64s")
"""What a caller says before its link request: where the rank that it calls listens."""

_PIECE = 64 * 1024


class Proxy:
    """Forwards; ``narrow`` and ``stop`` act on what one rank sends another."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._rates: dict[tuple[int, int], float] = {}
        self._changed = threading.Condition()
        self._sockets: list[socket.socket] = []
        self._bytes: Counter[tuple[int, int]] = Counter()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Closing a socket does not wake the thread that accepts from it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def narrow(self, source: int, target: int, *, bytes_per_s: float) -> None:
        """What ``source`` sends ``target`` goes no faster than this; 0: not at all."""
        with self._changed:
            self._rates[source, target] = bytes_per_s
            self._changed.notify_all()

    def busy(self) -> list[tuple[int, int]]:
        """(source, target) of the links that carry the job's large messages."""
        most = max(self._bytes.values(), default=0)
        return sorted(way for way, count in self._bytes.items() if count > most / 2)

    def free(self) -> None:
        """As quick as it can, everywhere."""
        with self._changed:
            self._rates.clear()
            self._changed.notify_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(caller,), daemon=True).start()

    def _connect(self, caller: socket.socket) -> None:
        port, host = PREFACE.unpack(caller.recv(PREFACE.size, socket.MSG_WAITALL))
        request = caller.recv(REQUEST_SIZE, socket.MSG_WAITALL)
        link_request, _ = LinkRequest.parse(request, job="")
        callee = socket.create_connection((host.rstrip(b"\0").decode(), port))
        self._sockets += [caller, callee]
        for sock in (caller, callee):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        callee.sendall(request)
        out = back = None  # TrainMover's own groups: only the job's links are counted and narrowed
        if not link_request.group.startswith("_"):
            out, back = (
                (link_request.source, link_request.target),
                (link_request.target, link_request.source),
            )
        for ends in ((caller, callee, out), (callee, caller, back)):
            threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(
        self, inside: socket.socket, outside: socket.socket, way: tuple[int, int] | None
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := inside.recv(_PIECE):
                if way is not None:
                    self._bytes[way] += len(piece)
                    self._hold(way, len(piece))
                outside.sendall(piece)
        for sock in (inside, outside):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _hold(self, way: tuple[int, int], count: int) -> None:
        if way not in self._rates:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._rates.get(way) != 0)
            rate = self._rates.get(way)
        if rate:
            time.sleep(count / rate)  # this is what makes it narrow
