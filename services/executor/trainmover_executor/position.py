"""Where a rank is, apart from what every replica knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Position"]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is, apart from parameters.

    Attributes:
        call: Which call of ``session.steps``, from 1.
        feed: Position in the data.
        rng: Random generators.
        buffers: (index, value) of the module buffers that training changes.
    """

    call: int
    feed: dict[str, Any]
    rng: dict[str, Any]
    buffers: list[list[Any]]

    def to_tree(self) -> dict[str, Any]:
        """As a portable tree."""
        return {
            "call": self.call,
            "feed": self.feed,
            "rng": self.rng,
            "buffers": self.buffers,
        }

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> Position:
        """From a portable tree."""
        return Position(
            call=tree["call"], feed=tree["feed"], rng=tree["rng"], buffers=tree["buffers"]
        )
