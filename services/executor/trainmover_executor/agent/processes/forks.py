"""The fork server seen from the agent: orders go out, news of processes comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainmover.errors import TrainMoverError
from trainmover.tracing.observe import get_logger
from trainmover_executor.messages.forks import (
    Exited,
    Ready,
    Signal,
    Spawn,
    Spawned,
    parse_from_forks,
)
from trainmover_executor.messages.worker import FrameReader, pack

__all__ = ["ForkServerClient"]

_log = get_logger(__name__)
_PIECE: Final = 1 << 16
_END_S: Final = 2.0


class ForkServerClient:
    """Starts the fork server, and again when it died; every order is one frame.

    Nothing here waits: frames are read and written as the socket allows.

    Args:
        entry: Where workers begin.
        scratch: The agent's private folder; the fork server removes it at the very end.
        heard: Called with every ``Spawned`` and ``Exited``.
    """

    def __init__(
        self, *, entry: str, scratch: Path, heard: Callable[[Spawned | Exited], None]
    ) -> None:
        self._entry = entry
        self._scratch = scratch
        self._heard = heard
        self._pending: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._alive: set[str] = set()  # orders whose process did not exit yet
        self._socket: socket.socket | None = None

    async def run(self) -> None:
        """Keep a fork server running until cancelled, then end it and all its workers.

        Raises:
            TrainMoverError: It ended before it could fork anything.
        """
        reason = "the agent ended"
        try:
            while await self._one_life():
                _log.error("forkserver.lost", workers=len(self._alive))
                # The kernel ended its workers with it.
                self._give_up("the fork server died")
            reason = (
                "the fork server ended while it imported torch and the worker: see its "
                "traceback above, and check that this environment has trainmover[train]."
            )
            raise TrainMoverError(reason)
        finally:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        """Report every worker as gone, and drop what was not sent."""
        for _, descriptors in self._pending:
            _close(descriptors)
        self._pending.clear()
        for key in tuple(self._alive):
            self._hear(Exited(key=key, pid=0, exit_code=None, signal=signal.SIGKILL, reason=reason))

    async def _one_life(self) -> bool:
        """Start a fork server and serve it until it ends; whether it ever was ready."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        reader = FrameReader()
        ready = False

        def receive() -> None:
            nonlocal ready
            try:
                data = ours.recv(_PIECE)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                loop.remove_reader(ours)
                ended.set()
            for header, _ in reader.feed(data):
                message = parse_from_forks(header)
                if isinstance(message, Ready):
                    ready = True
                    _log.debug("forkserver.ready", import_s=round(message.import_s, 2))
                else:
                    self._hear(message)

        process = None
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "trainmover_executor.forkserver.server", "--fd", str(theirs.fileno())),
                    *("--parent", str(os.getpid()), "--entry", self._entry),
                    *("--scratch", str(self._scratch)),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            self._socket = ours
            loop.add_reader(ours, receive)
            self._flush()
            await ended.wait()
        finally:
            self._socket = None
            loop.remove_reader(ours)
            loop.remove_writer(ours)
            ours.close()  # the end of its stream ends the server, and the server its workers
            if process is not None:
                await _wait_or_kill(process)
        return ready

    def spawn(self, order: Spawn, *, listener: socket.socket, clock: int) -> None:
        """Order a fork; its socket and its clock's memory go with it and are closed here."""
        self._alive.add(order.key)
        self._pending.append((pack(order), (listener.detach(), clock)))
        self._flush()

    def signal(self, key: str, signum: int) -> None:
        """Signal a worker and what it started; does nothing once it is gone."""
        if key in self._alive:
            self._pending.append((pack(Signal(key=key, signum=signum)), ()))
            self._flush()

    def _hear(self, message: Spawned | Exited) -> None:
        if isinstance(message, Exited):
            if message.key not in self._alive:
                return
            self._alive.discard(message.key)
        self._heard(message)

    def _flush(self) -> None:
        """Write what the socket takes now; the rest when it takes more."""
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        while self._pending:
            data, descriptors = self._pending.popleft()
            try:
                if descriptors:
                    sent = socket.send_fds(self._socket, [data], descriptors)
                else:
                    sent = self._socket.send(data)
            except BlockingIOError:
                self._pending.appendleft((data, descriptors))
                loop.add_writer(self._socket, self._flush)
                return
            except ConnectionError:
                self._pending.appendleft((data, descriptors))
                return  # the reader sees the end of the stream
            # They are in the kernel's hands now. Ours must go: when the worker is dead, its port
            # has to refuse.
            _close(descriptors)
            if sent < len(data):
                self._pending.appendleft((data[sent:], ()))
        loop.remove_writer(self._socket)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


async def _wait_or_kill(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
