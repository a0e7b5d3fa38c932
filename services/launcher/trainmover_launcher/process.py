"""One child process that cannot outlive its supervisor, and the ways to end it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Final

from trainmover.runtime import procfs
from trainmover.runtime.parents import die_with_parent

__all__ = [
    "Child",
    "adopt_orphans",
    "end_all",
    "end_orphans",
    "kill_all",
    "reap_orphans",
    "wait_gone",
]

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> frozenset[int]:
    """Make orphans below us our children, so that none escapes when an agent is killed.

    Returns:
        The children that we have already: somebody else's business, never orphans.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    me = os.getpid()
    return frozenset(stat.pid for stat in procfs.snapshot().values() if stat.parent == me)


def reap_orphans(known: Iterable[int]) -> None:
    """Collect adopted children that ended; ``known`` pids belong to a ``Child`` and are left."""
    ours = set(known)
    me = os.getpid()
    for stat in procfs.snapshot().values():
        if stat.parent == me and stat.state == "Z" and stat.pid not in ours:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stat.pid, os.WNOHANG)


class Child:
    """A process in a session of its own, killed by the kernel when the supervisor dies.

    A session of its own keeps a terminal's Ctrl-C from it: the supervisor alone decides the order
    in which processes end.

    Attributes:
        name: Who it is ("detector", "node-2").
        pid: Process id, valid until ``exited`` is set.
        exited: Set once the process ended.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.pid = process.pid
        self.exited = asyncio.Event()
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_exit)

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: IO[bytes] | int | None = None,
        stderr: IO[bytes] | int | None = None,
    ) -> Child:
        """Start ``argv``.

        Args:
            name: Who it is, for messages.
            argv: Program and arguments.
            env: Variables to add to our environment.
            cwd: Working folder.
            stdout: Where its output goes; our own when omitted.
            stderr: Where its errors go; our own when omitted.

        Raises:
            OSError: The program cannot be started.
        """
        process = subprocess.Popen(  # noqa: S603 - the command line is the caller's purpose
            list(argv),
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            # One prctl through an already loaded libc; this process runs no second thread.
            preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGKILL),  # noqa: PLW1509
        )
        return cls(name, process)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self.exited.is_set()

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative signal number, or None while it runs."""
        return self._process.returncode

    @property
    def ending(self) -> str:
        """How it ended, for people."""
        code = self.exit_code
        if code is None:
            return "still running"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; nothing happens when it already ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self.exited.set()


def kill_all(children: Sequence[Child]) -> None:
    """Kill ``children`` and everything below them at once; ``exited`` follows."""
    processes = procfs.snapshot()
    running = [child.pid for child in children if child.running]
    below = [stat.pid for pid in running for _, stat in procfs.descendants(pid, processes)]
    _kill(running + below)


async def end_all(children: Sequence[Child], *, grace_s: float) -> None:
    """End ``children`` and everything below them; returns when all are gone.

    Args:
        children: Who is to end; those that ended already are fine.
        grace_s: Seconds between the polite signal and the kill.
    """
    running = [child for child in children if child.running]
    for child in running:
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)  # a stopped process takes no other signal
    try:
        async with asyncio.timeout(grace_s):
            for child in running:
                await child.exited.wait()
    except TimeoutError:
        pass
    finally:
        kill_all(running)
        for child in running:
            await child.exited.wait()


def end_orphans(known: Iterable[int]) -> None:
    """Kill what was left to us by ended children, and collect it; ``known`` children are kept."""
    keep = set(known)
    processes = procfs.snapshot()
    for stat in processes.values():
        if stat.parent == os.getpid() and stat.pid not in keep:
            _kill([stat.pid, *(below.pid for _, below in procfs.descendants(stat.pid, processes))])
    reap_orphans(keep)


async def wait_gone(pid: int) -> None:
    """Return when the process, not necessarily our child, has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
