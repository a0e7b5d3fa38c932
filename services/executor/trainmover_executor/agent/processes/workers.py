"""The worker processes of this machine: start them, hear and tell them, end them."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

from trainmover.job.endpoints import endpoint_of
from trainmover.runtime import procfs
from trainmover_executor.agent.core import effects
from trainmover_executor.agent.options import AgentOptions
from trainmover_executor.agent.processes.control_link import ControlLink
from trainmover_executor.agent.processes.forks import ForkServerClient
from trainmover_executor.agent.processes.listeners import Listeners
from trainmover_executor.agent.processes.priority import come_forward
from trainmover_executor.clock.memory import ClockMemory
from trainmover_executor.messages.forks import Exited, Spawn, Spawned
from trainmover_executor.messages.worker import FromWorker, ToWorker, WorkerSpec

__all__ = ["WorkerPool"]

_LAST_WORDS: Final = 2000


class Heard(Protocol):
    """Takes in what workers say."""

    def __call__(self, key: str, message: FromWorker, body: bytes, /) -> None:
        """One message and its body."""


class WorkerPool:
    """Every process from ``spawn`` until its exit was reported.

    Args:
        options: What the agent was told.
        scratch: The agent's private folder, for sockets and last words.
        listeners: Where the workers' listening sockets wait.
        clocked: Called with the memory of the clock of each process.
        heard: Called with what a worker says.
        exited: Called when a process is gone and all it said was heard.
    """

    def __init__(
        self,
        options: AgentOptions,
        *,
        scratch: Path,
        listeners: Listeners,
        clocked: Callable[[str, int, ClockMemory], None],
        heard: Heard,
        exited: Callable[[effects.Exited], None],
    ) -> None:
        self._options = options
        self._scratch = scratch
        self._sockets = itertools.count()
        self._listeners = listeners
        self._clocked = clocked
        self._heard = heard
        self._exited = exited
        self._links: dict[str, ControlLink] = {}
        self._pids: dict[str, int] = {}
        self._wanted: set[str] = set()
        self._output: dict[str, Path | None] = {}
        self._kills: dict[str, asyncio.TimerHandle] = {}
        self._forks = ForkServerClient(
            entry=options.worker_entry, scratch=scratch, heard=self._on_fork_news
        )

    async def run(self) -> None:
        """Keep the fork server running until cancelled.

        Raises:
            TrainMoverError: The fork server cannot start.
        """
        try:
            await self._forks.run()
        finally:
            for link in self._links.values():
                link.close()

    def spawn(self, order: effects.Spawn) -> None:
        """Start a process."""
        options = self._options
        listener = self._listeners.take(order.socket_of, order.local_rank)
        host, port = listener.getsockname()[:2]
        memory, clock_fd = ClockMemory.shared()
        self._clocked(order.key, order.rank, memory)
        control = self._scratch / f"{next(self._sockets)}.sock"
        self._links[order.key] = ControlLink(order.key, control, heard=self._heard)
        spec = WorkerSpec(
            job=options.job,
            machine=options.machine,
            generation=order.generation,
            rank=order.rank,
            local_rank=order.local_rank,
            role=order.role,
            membership=order.membership,
            control=str(control),
            listen_fd=listener.fileno(),  # the fork server puts its own numbers here
            clock_fd=clock_fd,
            endpoint=endpoint_of(host, port),
            program=options.program,
            as_module=options.as_module,
            redundancy=options.redundancy,
            metrics_dir=None if options.metrics_dir is None else str(options.metrics_dir),
            log_dir=None if options.log_dir is None else str(options.log_dir),
        )
        output = None
        if options.log_dir is not None:
            # Named by rank first: the output of a rank that moved is found side by side.
            output = options.log_dir / f"rank{order.rank}-{options.machine}-{order.key}.log"
        self._output[order.key] = output
        self._forks.spawn(
            Spawn(
                key=order.key,
                spec=spec,
                entry=options.worker_entry,
                background=order.background,
                output=None if output is None else str(output),
                words=str(self._words_of(order.key)),
            ),
            listener=listener,
            clock=clock_fd,
        )

    def prioritise(self, keys: Iterable[str]) -> None:
        """Let processes that were started in the background count like any other."""
        for key in keys:
            self._wanted.add(key)
            if (pid := self._pids.get(key)) is not None:
                come_forward(pid)

    def send(self, key: str, message: ToWorker) -> None:
        """Tell a worker; kept until it said hello."""
        if (link := self._links.get(key)) is not None:
            link.send(message)

    def state_of(self, key: str) -> str:
        """The kernel's one-letter state of a worker's process; empty when it is gone."""
        pid = self._pids.get(key)
        stat = None if pid is None else procfs.read_stat(pid)
        return "" if stat is None else stat.state

    def end(self, keys: Iterable[str], *, grace_s: float) -> None:
        """End processes: SIGTERM, then SIGKILL after ``grace_s`` seconds; at once when it is 0."""
        for key in keys:
            if key not in self._links:
                continue
            if grace_s > 0:
                self._forks.signal(key, signal.SIGTERM)
                self._forks.signal(key, signal.SIGCONT)  # a stopped process takes no other signal
                self._kills[key] = asyncio.get_running_loop().call_later(
                    grace_s, self._forks.signal, key, signal.SIGKILL
                )
            else:
                self._forks.signal(key, signal.SIGKILL)

    def _on_fork_news(self, news: Spawned | Exited) -> None:
        if isinstance(news, Spawned):
            self._pids[news.key] = news.pid
            if news.key in self._wanted:
                come_forward(news.pid)
            return
        self._pids.pop(news.key, None)
        self._wanted.discard(news.key)
        if (kill := self._kills.pop(news.key, None)) is not None:
            kill.cancel()
        self._links[news.key].finish()
        del self._links[news.key]
        said = self._take_last_words(news)
        self._exited(
            effects.Exited(
                key=news.key,
                exit_code=news.exit_code,
                signal=news.signal,
                last_words=news.reason or said,
            )
        )

    def _words_of(self, key: str) -> Path:
        return self._scratch / f"{key}.words"

    def _take_last_words(self, news: Exited) -> str:
        words, output = self._words_of(news.key), self._output.pop(news.key)
        said = _tail(words)
        words.unlink(missing_ok=True)
        if output is not None and (news.signal is not None or not said):
            return _tail(output)  # native code that dies does not write to Python's stream
        return said


def _tail(path: Path) -> str:
    """The last 2000 characters of a file; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 4 * _LAST_WORDS))
            return file.read().decode("utf-8", "replace")[-_LAST_WORDS:]
    except OSError:
        return ""
