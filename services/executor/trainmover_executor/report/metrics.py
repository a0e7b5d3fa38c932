"""Loss lines of committed steps: what ``Session.log`` writes, and bitwise comparison reads."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final, TextIO

import torch

__all__ = ["StepLog"]

_LONGEST_LINE: Final = 64 * 1024


class StepLog:
    """Appends one JSON object per committed step to ``DIR/rank-R.jsonl``.

    Args:
        folder: Where; None to keep only the latest loss.
        rank: Global rank.
        machine: Machine that computes it.
    """

    def __init__(self, folder: str | None, *, rank: int, machine: str) -> None:
        self._folder = Path(folder) if folder else None
        self._rank = rank
        self._machine = machine
        self._pending: dict[str, float] = {}
        self._file: TextIO | None = None
        self.loss: float | None = None

    def note(self, values: dict[str, Any]) -> None:
        """Values of the running step; a redo overwrites them."""
        for name, value in values.items():
            self._pending[name] = float(value.detach() if torch.is_tensor(value) else value)

    def commit(self, *, step: int, epoch: int) -> None:
        """The step is complete: write its values."""
        values, self._pending = self._pending, {}
        self.loss = values.get("loss", self.loss)
        if self._folder is None:
            return
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"rank-{self._rank}.jsonl"
            _drop_last(path, step=step)
            self._file = path.open("a", buffering=1, encoding="utf-8")
        line: dict[str, Any] = {
            "step": step,
            "t": time.time(),
            "epoch": epoch,
            "machine": self._machine,
            **values,
        }
        if "loss" in values:
            line["loss_hex"] = values["loss"].hex()
        self._file.write(json.dumps(line) + "\n")

    @property
    def wanted(self) -> bool:
        """Whether anything is written at all."""
        return self._folder is not None

    def final(self, *, steps: int, digest: str) -> None:
        """Write what the whole run ended with, and close the step lines."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank-{self._rank}.final.json"
        path.write_text(json.dumps({"steps": steps, "digest": digest}), encoding="utf-8")


def _drop_last(path: Path, *, step: int) -> None:
    """Take the last line away if it is of ``step``, or torn.

    A machine may die as the only one that saw a step committed: it has written the line, and its
    successor does the step again with the others.
    """
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LONGEST_LINE))
        tail = file.read()
        before, newline, line = tail.removesuffix(b"\n").rpartition(b"\n")
        try:
            is_same = json.loads(line)["step"] == step
        except (ValueError, TypeError, KeyError):  # its writer died, or it is not a line of ours
            is_same = bool(line) and not tail.endswith(b"\n")
        if is_same:
            file.truncate(size - len(tail) + len(before) + len(newline))
