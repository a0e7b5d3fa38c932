"""A process that has torch imported and forks workers in milliseconds.

The agent starts it (``python -m trainmover_executor.forkserver.server``) with one end of a
socketpair. It is single-threaded for ever: a fork in the presence of threads copies locks that
nobody will ever release. It ends, and takes its workers with it, when the agent's end of the socket
closes.

In a forked child ``ForkServer.serve`` *returns*, all the way up to ``main``: the worker then runs
on a clean stack and leaves through the interpreter's ordinary exit.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trainmover.job.topology import Frozen
from trainmover.runtime.parents import die_with_parent
from trainmover_executor.forkserver.child import become_worker
from trainmover_executor.messages.forks import (
    DEFAULT_ENTRY,
    Exited,
    Ready,
    Signal,
    Spawn,
    Spawned,
    parse_to_forks,
)
from trainmover_executor.messages.worker import FrameReader, pack

__all__ = ["ForkServer", "main"]

_PRELOAD: Final = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.optim",
)
# A math library that starts its thread pool at import would leave every child without threads
# but with their locks; one thread a rank is also what several ranks on one host want.
_ONE_THREAD: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class ForkServer:
    """Forks on request, reports what became of each child.

    Args:
        peer: This end of the socketpair.
        scratch: The agent's private folder; removed when the agent is gone.
    """

    def __init__(self, peer: socket.socket, *, scratch: Path | None = None) -> None:
        self._peer = peer
        self._scratch = scratch
        self._pid = os.getpid()
        self._reader = FrameReader()
        self._descriptors: deque[int] = deque()
        self._orders: deque[Spawn | Signal] = deque()
        self._pids: dict[str, int] = {}
        self._keys: dict[int, str] = {}

    def serve(self, ready: Ready) -> Spawn | None:
        """Serve until the agent is gone.

        Args:
            ready: Said first.

        Returns:
            None in the server, the order to carry out in a forked child.
        """
        # Signals become bytes in a pipe that the loop reads like any other input: nothing ever
        # happens "in the middle" of a fork.
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        for signum in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(signum, _ignore)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the agent to act on
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self._tell(ready)
        with selectors.PollSelector() as selector:
            selector.register(self._peer, selectors.EVENT_READ)
            selector.register(read_end, selectors.EVENT_READ)
            while True:
                readable = {key.fileobj for key, _ in selector.select()}
                if read_end in readable and signal.SIGTERM in os.read(read_end, 4096):
                    break
                self._reap()
                if self._peer in readable and not self._receive():
                    break
                if (order := self._work()) is not None:
                    os.close(read_end)
                    os.close(write_end)
                    return order
        self._end_all()
        return None

    def _receive(self) -> bool:
        """Take in what the agent sent; False when it is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._peer, 65536, 16)
        except ConnectionError:
            return False
        self._descriptors.extend(descriptors)
        for header, _ in self._reader.feed(data):
            self._orders.append(parse_to_forks(header))
        return bool(data)

    def _work(self) -> Spawn | None:
        """Carry out the waiting orders; in a forked child, return the child's order."""
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, Signal):
                self._signal(order.key, order.signum)
            elif (child := self._fork(order)) is not None:
                return child
        return None

    def _fork(self, order: Spawn) -> Spawn | None:
        # Descriptors arrive in the order of their frames.
        listener, clock = self._descriptors.popleft(), self._descriptors.popleft()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # A signal must meet either the server's handlers in the server or none in the child:
        # in between, the child's copy of the wakeup pipe would speak for the wrong process.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(listener)
            os.close(clock)
            self._tell(
                Exited(
                    key=order.key,
                    pid=0,
                    exit_code=None,
                    signal=None,
                    reason=f"cannot fork a worker: {error}. Check the limits of processes and "
                    "memory of this machine.",
                )
            )
            return None
        if pid == 0:
            self._forget_server()
            become_worker(order, server=self._pid)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            inherited = {"listen_fd": listener, "clock_fd": clock}
            return order.model_copy(update={"spec": order.spec.model_copy(update=inherited)})
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        # Only the worker may hold its listening socket: once it is dead its port must refuse.
        os.close(listener)
        os.close(clock)
        self._pids[order.key] = pid
        self._keys[pid] = order.key
        self._tell(Spawned(key=order.key, pid=pid))
        return None

    def _forget_server(self) -> None:
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._peer.close()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _reap(self) -> None:
        while True:
            try:
                look = os.WEXITED | os.WNOHANG | os.WNOWAIT
                status = os.waitid(os.P_ALL, 0, look)
            except ChildProcessError:
                return
            if status is None:
                return
            pid = status.si_pid
            # While the leader is not reaped its process group cannot be anybody else's: what it
            # left behind (data loader workers) is ended now, not after.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if (key := self._keys.pop(pid, None)) is None:
                continue  # not a worker: something that an import started
            del self._pids[key]
            by_itself = status.si_code == os.CLD_EXITED
            self._tell(
                Exited(
                    key=key,
                    pid=pid,
                    exit_code=status.si_status if by_itself else None,
                    signal=None if by_itself else status.si_status,
                )
            )

    def _signal(self, key: str, signum: int) -> None:
        pid = self._pids.get(key)
        if pid is None:
            return
        try:
            os.killpg(pid, signum)
        except ProcessLookupError:  # it was forked a moment ago and has no group of its own yet
            os.kill(pid, signum)

    def _tell(self, message: Frozen) -> None:
        # An agent that is gone is noticed by the loop, as the end of its stream.
        with contextlib.suppress(ConnectionError):
            self._peer.sendall(pack(message))

    def _end_all(self) -> None:
        for key in list(self._pids):
            self._signal(key, signal.SIGKILL)
        for pid in self._keys:
            os.waitpid(pid, 0)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _ignore(_signum: int, _frame: object) -> None:
    """The byte in the wakeup pipe says it all."""


def _preload(entry: str) -> None:
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    for module in (*(_PRELOAD if entry == DEFAULT_ENTRY else ()), entry.partition(":")[0]):
        importlib.import_module(module)
    # Keep the collector off the shared pages: a collection in a child would copy all of them.
    gc.collect()
    gc.freeze()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the fork server, and, in its children, the workers."""
    parser = argparse.ArgumentParser(prog="trainmover_executor.forkserver.server")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--entry", default=DEFAULT_ENTRY)
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args(argv)
    # SIGTERM, not SIGKILL: its handler also ends what the workers started. Should this process
    # be killed itself, the workers' own death signal still takes them along.
    die_with_parent(options.parent, signal.SIGTERM)
    started = time.monotonic()
    _preload(options.entry)
    peer = socket.socket(fileno=options.fd)
    order = ForkServer(peer, scratch=options.scratch).serve(
        Ready(import_s=time.monotonic() - started)
    )
    if order is not None:
        module, _, function = order.entry.partition(":")
        getattr(importlib.import_module(module), function)(order.spec)


if __name__ == "__main__":
    main()
