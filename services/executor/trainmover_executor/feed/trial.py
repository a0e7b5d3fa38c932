"""Something tried in a copy of this process: of all that it changes, its outcome alone stays."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import multiprocessing
import os
import signal
import stat
import time
import warnings
from collections.abc import Callable, Collection
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final

import torch

from trainmover.runtime.parents import die_with_parent

__all__ = ["Trial"]

_STANDARD: Final = frozenset({0, 1, 2})
_MOST_BYTES: Final = 64 * 1024
_PATIENCE_S: Final = 60.0


class Trial:
    """A copy of this process in which work is under way.

    It has this thread alone, none of the sockets and pipes, and places of its own in files. It
    lives no longer than this process.

    Args:
        work: What is tried; returns something that JSON can express.

    Raises:
        OSError: There is no room for another process.
    """

    def __init__(self, work: Callable[[], dict[str, Any]]) -> None:
        parent = os.getpid()
        self._read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._until = time.monotonic() + _PATIENCE_S
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are other threads
            self._pid = os.fork()
        if self._pid == 0:
            _be_the_copy(work, parent=parent, write=write)
        os.close(write)

    @staticmethod
    def is_possible() -> bool:
        """Whether no process of this one is at work: a copy would speak to it in our name."""
        return not multiprocessing.active_children()

    def outcome(self) -> dict[str, Any] | None:
        """What the work returned; empty where it failed, None while it is under way."""
        if not self._has_ended(os.WNOHANG):
            if time.monotonic() < self._until:
                return None
            self.end()
            return {}
        said = b""
        with contextlib.suppress(BlockingIOError):
            said = os.read(self._read, _MOST_BYTES)
        os.close(self._read)
        found: dict[str, Any] = json.loads(said) if said else {}
        return found

    def end(self) -> None:
        """Give it up."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._has_ended(0)
        os.close(self._read)

    def _has_ended(self, options: int) -> bool:
        try:
            return os.waitpid(self._pid, options)[0] != 0
        except ChildProcessError:  # the program ignores SIGCHLD: nobody is to ask
            return not Path(f"/proc/{self._pid}").exists()


def _be_the_copy(work: Callable[[], dict[str, Any]], *, parent: int, write: int) -> None:
    """Do the work, say what came of it, and end without any of what ends a process of Python."""
    try:
        die_with_parent(parent, signal.SIGKILL)
        gc.disable()  # what it would close may be another file by now
        tracker = getattr(resource_tracker._resource_tracker, "_fd", None)  # noqa: SLF001
        _have_own_files(but={write, tracker})  # workers have their semaphores entered there
        torch.set_num_threads(1)  # threads of a pool are not copied, and would be waited for
        os.write(write, json.dumps(work()).encode()[:_MOST_BYTES])
    finally:
        for worker in multiprocessing.active_children():
            worker.kill()
        os._exit(0)


def _have_own_files(*, but: Collection[int | None]) -> None:
    """Read files from where they stand without moving them on; speak to nobody.

    A copy of a process has the same open files: what it reads, the other one would not find again.
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        fd = int(entry.name)
        if fd in _STANDARD or fd in but:
            continue
        with contextlib.suppress(OSError):
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode):
                _open_again(fd)
            elif stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                os.close(fd)


def _open_again(fd: int) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL)
    own = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
    os.lseek(own, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(own, fd, inheritable=os.get_inheritable(fd))
    os.close(own)
