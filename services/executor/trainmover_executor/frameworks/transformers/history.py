"""What a trainer has logged, as part of the state."""

from __future__ import annotations

import json
from typing import Any, Final

import torch

__all__ = ["LogHistory"]

_TIMINGS: Final = (
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "tokens_per_second",
    "model_preparation_time",
)
"""Ends of names of what each rank measures for itself."""


class LogHistory:
    """``TrainerState.log_history`` without times, which differ from rank to rank and run to run.

    It is one tensor of bytes, made anew when something was logged, because it grows with the job
    and is looked at in each step.

    Args:
        entries: The history, which is changed in place.
    """

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = entries
        self._lines: list[bytes] = []
        self._last: dict[str, Any] | None = None
        self._tensor = _tensor_of([])

    def state_dict(self) -> dict[str, Any]:
        """``entries``: lines of JSON, uint8 of shape (bytes,)."""
        entries, told = self._entries, len(self._lines)
        if told and (told > len(entries) or entries[told - 1] is not self._last):
            self._lines, told = [], 0
        if told < len(entries):
            self._lines += map(_line_of, entries[told:])
            self._tensor, self._last = _tensor_of(self._lines), entries[-1]
        elif not entries:
            self._tensor = _tensor_of([])
        return {"entries": self._tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back; entries that are here already stay as they are, with their times."""
        joined = state["entries"].numpy().tobytes()
        lines = joined.split(b"\n") if joined else []
        same = 0
        for line, entry in zip(lines, self._entries, strict=False):
            if line != _line_of(entry):
                break
            same += 1
        self._entries[same:] = [json.loads(line) for line in lines[same:]]
        self._lines = lines
        self._last = self._entries[-1] if lines else None
        self._tensor = _tensor_of(lines)


def _line_of(entry: dict[str, Any]) -> bytes:
    kept = {name: value for name, value in entry.items() if not name.endswith(_TIMINGS)}
    return json.dumps(kept, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Of a number of numpy or torch that a program has logged."""
    return value.item() if hasattr(value, "item") else str(value)


def _tensor_of(lines: list[bytes]) -> torch.Tensor:
    if not lines:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(b"\n".join(lines)), dtype=torch.uint8)
