"""A checkpoint of one rank, saved by the program's own hook while the job waits for a machine.

The other ranks may be gone, so the hook must not communicate: each survivor saves what it holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import structlog

from trainmover.commands import SaveCheckpoint
from trainmover.events.executor import CheckpointSaved
from trainmover_executor.state.redo import StepStart
from trainmover_executor.worker.runtime import Runtime

__all__ = ["CheckpointHook", "CheckpointKeeper"]

log = structlog.get_logger(__name__)

CheckpointHook = Callable[[int], str | os.PathLike[str]]
"""Saves the state of this rank after so many steps; says where."""

_NO_HOOK = "the program has no hook for it: Session(checkpoint=...)"


class CheckpointKeeper:
    """Saves on request and answers with ``worker.saved``.

    Args:
        hook: The program's own; None where it has none.
        runtime: Where the answer goes.
        start: The start of the step that broke.
    """

    def __init__(self, hook: CheckpointHook | None, *, runtime: Runtime, start: StepStart) -> None:
        self._hook = hook
        self._runtime = runtime
        self._start = start

    def save(self, order: SaveCheckpoint, *, committed: int) -> None:
        """Save the state after ``committed`` steps, whatever the aborted step did since."""
        path, obstacle = "", _NO_HOOK
        if self._hook is not None:
            try:
                with self._start.in_place(committed):
                    path, obstacle = os.fspath(self._hook(committed)), ""
            except Exception as error:  # the job ends with the reason, and other ranks may save
                log.exception("the program's checkpoint hook failed", committed=committed)
                obstacle = f"the program's hook failed: {type(error).__name__}: {error}"
        log.info("checkpoint on request", path=path, obstacle=obstacle, committed=committed)
        self._runtime.report(
            CheckpointSaved(
                machine=self._runtime.spec.machine,
                rank=self._runtime.rank,
                epoch=order.epoch,
                step=committed,
                path=path,
                obstacle=obstacle,
            )
        )
