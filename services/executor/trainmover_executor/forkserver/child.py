"""What makes a freshly forked child an ordinary process of its own."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
from typing import Any, Final

from trainmover.runtime.parents import die_with_parent
from trainmover_executor.messages.forks import Spawn

__all__ = ["become_worker"]

_LAST_WORDS: Final = 2000
_PR_SET_NAME: Final = 15
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _RememberingStderr(io.TextIOWrapper):
    """Standard error that keeps its last characters in a file, whatever ends the process."""

    def __init__(self, buffer: Any, words: str) -> None:
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        self._words_fd = os.open(words, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._tail = ""

    def write(self, text: str, /) -> int:
        self._tail = (self._tail + text)[-_LAST_WORDS:]
        tail = self._tail.encode("utf-8", "backslashreplace")
        os.pwrite(self._words_fd, tail, 0)
        os.ftruncate(self._words_fd, len(tail))
        return super().write(text)


def become_worker(order: Spawn, *, server: int) -> None:
    """Cut the ties to the fork server, except that its death is ours.

    Args:
        order: What the process is for.
        server: Process id of the fork server.
    """
    die_with_parent(server, signal.SIGKILL)
    os.setsid()  # its own group: a signal to it reaches what it starts, a ctrl-C does not reach it
    name = f"tm-rank{order.spec.rank}".encode()
    _LIBC.prctl(_PR_SET_NAME, name, 0, 0, 0)
    if order.background:
        # Shadow iterations give way to ranks that train. Not `nice`, which cannot be taken back
        # without privileges; the agent ends this when a plan counts on the process.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if order.output is not None:
        output = os.open(order.output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    if order.words is not None and isinstance(sys.stderr, io.TextIOWrapper):
        buffer = sys.stderr.detach()
        sys.stderr = _RememberingStderr(buffer, order.words)
        sys.__stderr__ = io.TextIOWrapper(  # type: ignore[misc] # the old one has lost its buffer
            buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
    if (numpy := sys.modules.get("numpy")) is not None:
        # Unlike `random`, numpy's global generator is not seeded anew in a child: all ranks would
        # draw the same "random" numbers, which a rank started by exec would not.
        numpy.random.seed()
