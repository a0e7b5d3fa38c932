"""Taking a process out of the background once the job counts on it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["come_forward"]


def come_forward(pid: int) -> None:
    """Schedule every thread of a process normally; does nothing when it is gone.

    Args:
        pid: A process that was started with ``SCHED_BATCH``.
    """
    # A thread that is started meanwhile inherits from one that may not have had its turn yet:
    # look again until a look finds nothing to do.
    while sum(_come_forward(int(thread.name)) for thread in _threads(pid)):
        pass


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _come_forward(thread: int) -> bool:
    """Whether there was something to do."""
    try:
        if os.sched_getscheduler(thread) != os.SCHED_BATCH:
            return False
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
    except (ProcessLookupError, PermissionError):
        return False
    return True
