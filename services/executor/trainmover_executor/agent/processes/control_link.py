"""The agent's end of one worker's unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from trainmover.errors import ProtocolError
from trainmover.tracing.observe import get_logger
from trainmover_executor.messages.worker import (
    FrameReader,
    FromWorker,
    Hello,
    ToWorker,
    pack,
    parse_from_worker,
)

__all__ = ["ControlLink"]

_log = get_logger(__name__)
_PIECE: Final = 1 << 18


class ControlLink:
    """Accepts one worker, reads its frames as they come, sends it frames once it said hello.

    Sockets are read and written by event loop callbacks rather than streams, so that ``finish``
    can take in, without waiting, all that a dead process has left behind.

    Args:
        key: The worker.
        path: Where the worker connects.
        heard: Called with every message and its body.
    """

    def __init__(
        self, key: str, path: Path, *, heard: Callable[[str, FromWorker, bytes], None]
    ) -> None:
        self.key = key
        self._path = path
        self._heard = heard
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._greeted = False
        self._link: socket.socket | None = None
        self._door: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(str(path))
        self._door.listen(1)
        self._door.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._door, self._accept)

    def send(self, message: ToWorker) -> None:
        """Send a frame now, or as soon as the worker has said hello."""
        self._unsent += pack(message)
        self._flush()

    def finish(self) -> None:
        """The process is gone: hear what it still said, then close."""
        self._accept()
        while self._link is not None and self._receive():
            pass
        self.close()

    def close(self) -> None:
        """Close both sockets; may be called twice."""
        if self._link is not None:
            self._loop.remove_reader(self._link)
            self._loop.remove_writer(self._link)
            self._link.close()
            self._link = None
        self._close_door()

    def _close_door(self) -> None:
        if self._door is not None:
            self._loop.remove_reader(self._door)
            self._door.close()
            self._door = None
            self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        if self._door is None:
            return
        try:
            self._link, _ = self._door.accept()
        except BlockingIOError:
            return
        self._close_door()  # one worker, one connection
        self._link.setblocking(False)
        self._loop.add_reader(self._link, self._receive)

    def _receive(self) -> bool:
        """Take in one piece; False when there was none."""
        if self._link is None:
            return False
        try:
            data = self._link.recv(_PIECE)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        try:
            for header, body in self._reader.feed(data):
                self._take(parse_from_worker(header), body)
        except (ProtocolError, ValidationError, LookupError) as error:
            # The frames after a broken one cannot be trusted. The worker notices the end of its
            # link and exits; that exit is then reported like any other.
            _log.error("worker.garbled", worker=self.key, error=str(error))
            data = b""
        if not data:
            self.close()
        return bool(data)

    def _take(self, message: FromWorker, body: bytes) -> None:
        if isinstance(message, Hello):
            self._greeted = True
            self._flush()
        self._heard(self.key, message, body)

    def _flush(self) -> None:
        if self._link is None or not self._greeted:
            return
        # A worker that is gone is noticed by its exit.
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._unsent:
                del self._unsent[: self._link.send(self._unsent)]
        if self._unsent:
            self._loop.add_writer(self._link, self._flush)
        else:
            self._loop.remove_writer(self._link)
