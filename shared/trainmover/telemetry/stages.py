"""Stages of the analysis of telemetry that an agent can run in the detector's place; pure.

A stage turns what one machine measured into less, and whoever looks at the result finds the same in
it. Where a stage runs is chosen by the detector; an agent that was told nothing runs none. Each
batch shows by its sections what was done to it, so that batches of both kinds may be mixed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from trainmover.telemetry.records import ACTIVITY, RECORD, Batch

__all__ = ["OPERATIONS", "STAGES", "MachineStages", "count_operations"]

OPERATIONS: Final = "operations"
"""Operations that ended (``records``) are counted for each rank (``activity``)."""

STAGES: Final = (OPERATIONS,)
"""All stages, in the order in which a batch goes through them: an agent runs the first few."""

_NO_RECORDS: Final = np.zeros(0, RECORD)


class MachineStages:
    """What an agent does with its batches before it sends them."""

    def __init__(self) -> None:
        self._run: frozenset[str] = frozenset()
        self._stepped = -1

    @property
    def run(self) -> frozenset[str]:
        """Names of the stages that this side runs."""
        return self._run

    def place(self, stages: Iterable[str]) -> None:
        """Run these from now on; none of them where one is unknown here."""
        wanted = frozenset(stages)
        self._run = wanted if wanted <= frozenset(STAGES) else frozenset()

    def apply(self, batch: Batch) -> Batch:
        """What is to be sent of a batch."""
        if len(batch.more.steps):
            self._stepped = max(self._stepped, batch.epoch)
        # Before the first step of an epoch, operations are all that tells who is late.
        if OPERATIONS in self._run and batch.epoch <= self._stepped:
            return count_operations(batch)
        return batch


def count_operations(batch: Batch) -> Batch:
    """``batch`` with the number of each rank's operations in place of the operations."""
    if not len(batch.records):
        return batch
    ranks, counts = np.unique(batch.records["rank"], return_counts=True)
    activity = np.zeros(len(ranks), ACTIVITY)
    activity["rank"], activity["operations"] = ranks, counts
    more = replace(batch.more, records=_NO_RECORDS, activity=activity)
    return replace(batch, records=more.records, more=more)
