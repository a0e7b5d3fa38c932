"""Values of a ``TensorBoardLogger``, written by whoever is the main process when they count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger

from trainmover_executor.frameworks.lightning.carried.rows import number_of
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Scalars"]


class Scalars:
    """Holds back what is logged in work that may be done again; a joiner writes on.

    All ranks note the values, and the main process hands them to the logger. One that comes after
    it writes into a file of its own in the same folder, which TensorBoard shows as one run. After a
    crash it writes once more what the dead one may have written since its last vote.

    Args:
        logger: Which. Its ``log_metrics``, ``save`` and ``finalize`` are replaced.
        runtime: This rank's.
        version: The run's, as the main process has it.
        may_be_redone: Whether the process is in a body or in work of all ranks.
    """

    def __init__(
        self,
        logger: TensorBoardLogger,
        *,
        runtime: Runtime,
        version: int | str,
        may_be_redone: Callable[[], bool],
    ) -> None:
        self._logger = logger
        self._runtime = runtime
        self._may_be_redone = may_be_redone
        self._pending: list[tuple[dict[str, Any], int | None]] = []
        self._own = logger.log_metrics, logger.save, logger.finalize
        logger._version = version  # noqa: SLF001 - else each process looks for a free one
        for name, method in (
            ("log_metrics", self._log),
            ("save", self.save),
            ("finalize", self._finalize),
        ):
            setattr(logger, name, method)

    def state_dict(self) -> dict[str, Any]:
        """Numbers, strings and lists of them."""
        pending = [[list(map(list, values.items())), step] for values, step in self._pending]
        return {"version": self._logger.version, "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self._logger._version = state["version"]  # noqa: SLF001 - see above
        self._pending = [(dict(values), step) for values, step in state["pending"]]

    def promoted(self) -> None:
        """The logger makes its file when it is handed the first values."""

    def save(self) -> None:
        """Hand on what counts by now."""
        if self._runtime.sandboxed or self._may_be_redone():
            return
        pending, self._pending = self._pending, []
        log_metrics, save, _ = self._own
        if self._runtime.rank == 0 and pending:
            for values, step in pending:
                log_metrics(values, step)
            save()

    def _log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        values = {name: number_of(value) for name, value in metrics.items()}
        self._pending.append((values, step))

    def _finalize(self, status: str) -> None:
        self.save()
        if self._runtime.rank == 0 and not self._runtime.sandboxed:
            self._own[2](status)
