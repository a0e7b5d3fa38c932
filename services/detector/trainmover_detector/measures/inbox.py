"""Step records that wait to be looked at together.

In a job of thousands of machines each batch is small and there are thousands a second: it is the
number of looks that costs, not the number of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import STEP

__all__ = ["FEW_RANKS", "StepInbox", "join_records"]

FEW_RANKS: Final = 512
"""Jobs up to so many ranks are looked at with each batch; larger ones with each tick."""

Records = npt.NDArray[np.void]


def join_records(parts: Sequence[Records], dtype: np.dtype[np.void]) -> Records:
    """Records of one layout, one part after the other; not to be written to."""
    if len(parts) == 1:
        return parts[0]
    # Joined as bytes: numpy compares layouts field by field, for each part.
    return np.frombuffer(b"".join(part.tobytes() for part in parts), dtype)


class StepInbox:
    """Collects step records.

    Args:
        world_size: Number of ranks.

    Attributes:
        at_once: Whether every batch is looked at when it comes.
    """

    def __init__(self, world_size: int) -> None:
        self.at_once = world_size <= FEW_RANKS
        self._parts: list[Records] = []

    def __len__(self) -> int:
        return len(self._parts)

    def put(self, records: Records) -> None:
        """Add a batch, dtype ``STEP``."""
        self._parts.append(records)

    def take(self) -> Records:
        """Everything since the last time, oldest first."""
        parts, self._parts = self._parts, []
        return join_records(parts, STEP)
