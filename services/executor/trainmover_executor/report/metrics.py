"""Loss lines of committed steps: what ``Session.log`` writes, and bitwise comparison reads."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

import torch

__all__ = ["StepLog"]


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
