"""Rows of a ``CSVLogger``, each of which is in the file once, whoever the main process is."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from trainmover_executor.worker.runtime import Runtime

__all__ = ["Rows", "number_of"]


class Rows:
    """Writes the rows of one logger, in place of its own way to do that.

    All ranks count the rows, and the main process writes them. One that comes after it cuts the
    file to as many as the job had, and goes on: what the machine that died had written of an
    aborted step or evaluation is not in the file.

    Args:
        logger: Which. Its ``log_metrics``, ``save`` and ``finalize`` are replaced.
        runtime: This rank's.
        version: The run's, as the main process has it.
    """

    def __init__(self, logger: CSVLogger, *, runtime: Runtime, version: int | str) -> None:
        self._logger = logger
        self._runtime = runtime
        logger._version = version  # noqa: SLF001 - else each process looks for a free one
        self._keys: list[str] = []
        self._written = 0
        self._pending: list[dict[str, Any]] = []
        self._is_cut = False
        for name, method in (
            ("log_metrics", self._log),
            ("save", self.save),
            ("finalize", self._finalize),
        ):
            setattr(logger, name, method)

    def state_dict(self) -> dict[str, Any]:
        """Numbers, strings and lists of them."""
        rows = [list(map(list, row.items())) for row in self._pending]
        return {
            "version": self._logger.version,
            "keys": list(self._keys),
            "written": self._written,
            "pending": rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self._logger._version = state["version"]  # noqa: SLF001 - see above
        self._keys = list(state["keys"])
        self._pending = [dict(row) for row in state["pending"]]
        self._is_cut = self._is_cut and self._written == state["written"]
        self._written = state["written"]

    def promoted(self) -> None:
        """This process is the main one from now on: what it makes clears no folder."""
        self._logger._experiment = _Experiment(self._logger.log_dir)  # noqa: SLF001 - as above
        self._is_cut = False

    def save(self) -> None:
        """Write what is pending; nothing in a shadow, which may have to write it later."""
        if self._runtime.sandboxed:
            return
        writer = self._logger._experiment  # noqa: SLF001 - as above
        if writer is not None:  # the program may write to it past the logger
            self._pending += writer.metrics
            writer.metrics = []
        if not self._pending:
            return
        rows, self._pending = self._pending, []
        keys = sorted({*self._keys, *(key for row in rows for key in row)})
        is_new, self._keys = keys != self._keys, keys
        if self._runtime.rank == 0:
            self._write(rows, anew=is_new or not self._is_cut)
            self._is_cut = True
        self._written += len(rows)

    def _log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        prefix, join = self._logger._prefix, self._logger.LOGGER_JOIN_CHAR  # noqa: SLF001 - as above
        row = {
            f"{prefix}{join}{key}" if prefix else key: number_of(value)
            for key, value in metrics.items()
        }
        row["step"] = self._written + len(self._pending) if step is None else step
        self._pending.append(row)

    def _finalize(self, status: str) -> None:
        del status
        self.save()

    def _write(self, rows: list[dict[str, Any]], *, anew: bool) -> None:
        path = Path(self._logger.log_dir) / ExperimentWriter.NAME_METRICS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        if not anew:
            with path.open("a", newline="") as file:
                csv.DictWriter(file, self._keys).writerows(rows)
            return
        before: list[Any] = []
        if path.exists():
            with path.open(newline="") as file:
                before = list(csv.DictReader(file))[: self._written]
        draft = path.with_suffix(".tmp")
        with draft.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._keys, extrasaction="ignore")
            writer.writeheader()
            writer.writerows([*before, *rows])
        draft.replace(path)


class _Experiment(ExperimentWriter):  # type: ignore[misc] # Lightning's types are not followed
    """Lightning's, but for that it begins where another process has ended."""

    def _check_log_dir_exists(self) -> None:
        pass


def number_of(value: Any) -> Any:
    """A logged value as a logger writes it."""
    return value.item() if isinstance(value, torch.Tensor) else value
