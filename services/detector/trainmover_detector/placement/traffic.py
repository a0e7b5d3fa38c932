"""How much machines send, as their batches show it; pure.

One machine must not decide for all: what counts is the median machine, so that fewer than half of
them cannot move the split by what they claim.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trainmover.detection import CollectiveWindow
from trainmover.telemetry.stages import OPERATIONS
from trainmover_detector.placement.costs import Traffic

__all__ = ["TrafficMeter"]

_MOST: Final = 1 << 40
"""Operations of a machine; a claim of more is cut."""


class TrafficMeter:
    """Counts what came since the last reading."""

    def __init__(self) -> None:
        self._ranks = 1
        self._batches = 0
        self._operations: dict[str, int] = {}
        self._counting: set[str] = set()
        self._sending: set[str] = set()

    def add(self, window: CollectiveWindow) -> None:
        """Take in a batch."""
        machine, operations = window.machine, len(window.records)
        if operations:
            self._sending.add(machine)
        elif len(window.activity):
            self._counting.add(machine)
            claimed = int(window.activity["operations"].sum(dtype=np.int64))
            operations = min(max(claimed, 0), _MOST)
        self._operations[machine] = self._operations.get(machine, 0) + operations
        self._batches += 1
        self._ranks = window.membership.layout.ranks_per_slot

    def unlike(self, at_agents: tuple[str, ...]) -> int:
        """How many machines sent something else than this split has them send."""
        return len(self._sending if OPERATIONS in at_agents else self._counting)

    def take(self, elapsed_s: float) -> Traffic | None:
        """Traffic since the last time; None where nobody sent anything."""
        machines, self._operations = self._operations, {}
        batches, self._batches = self._batches, 0
        self._counting.clear()
        self._sending.clear()
        if not machines:
            return None
        return Traffic(
            machines=len(machines),
            ranks=self._ranks,
            batches_s=batches / len(machines) / elapsed_s,
            operations_s=float(np.median(list(machines.values()))) / elapsed_s,
        )
