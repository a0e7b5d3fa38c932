"""How a machine is hurt: its processes are stopped most of the time, or killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass

from trainmover.runtime import procfs

__all__ = ["Throttle", "workers_of"]


def workers_of(agent: int) -> list[int]:
    """Pids of the training processes of a machine: what its agent's fork server started.

    The agent and the fork server themselves stay quick: the machine is slow, not dead.
    """
    below = procfs.descendants(agent)
    deepest = [stat.pid for depth, stat in below if depth >= 2]
    return deepest or [stat.pid for _, stat in below]


@dataclass(frozen=True, slots=True)
class Throttle:
    """Makes a machine slow, as a hot or busy host would be.

    Attributes:
        agent: Process id of the machine's agent.
        stop_s: Seconds its workers stand still.
        go_s: Seconds they run in between.
    """

    agent: int
    stop_s: float = 0.06
    go_s: float = 0.02

    async def run(self) -> None:
        """Throttle until cancelled or until no worker is left; in the end they all run freely."""
        try:
            while pids := workers_of(self.agent):
                _signal(pids, signal.SIGSTOP)
                await asyncio.sleep(self.stop_s)
                _signal(pids, signal.SIGCONT)
                await asyncio.sleep(self.go_s)
        finally:
            _signal(workers_of(self.agent), signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
