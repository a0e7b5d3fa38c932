"""Adds up what a rank's operations say about each of its steps; pure, off the training thread."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import Flag

__all__ = ["summarise"]

_OP: Final = np.uint64(0x9E3779B97F4A7C15)
_BYTES: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PEER: Final = np.uint64(0x165667B19E3779F9)
_KEPT: Final = 32_768


def summarise(steps: npt.NDArray[np.void], records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Fill in ``wait_ns``, ``ops`` and ``signature`` of ``steps``.

    Args:
        steps: Committed steps of one rank, dtype ``STEP``, oldest first; changed in place.
        records: Its operations, dtype ``RECORD``.

    Returns:
        The operations of steps that are still to come.
    """
    if len(steps):
        newest = steps["step"][-1]
        _fill(steps, records[records["step"] <= newest])
        records = records[records["step"] > newest]
    return records[-_KEPT:]


def _fill(steps: npt.NDArray[np.void], records: npt.NDArray[np.void]) -> None:
    if not len(records):
        return
    records = records[np.lexsort((records["enter_ns"], records["step"]))]
    begins = records["enter_ns"]
    # Each interval counts from where everything before it had ended: overlaps count once.
    ended = np.maximum.accumulate(begins + records["duration_ns"])
    covered = ended - np.maximum(begins, np.concatenate([begins[:1], ended[:-1]]))
    peer = records["peer"]
    with np.errstate(over="ignore"):
        away = np.where(peer < 0, 0, peer - records["rank"]).astype(np.int64).view(np.uint64)
        kinds = (records["op"].astype(np.uint64) + np.uint64(1)) * _OP
        mixed = (kinds ^ (records["bytes"].view(np.uint64) * _BYTES)) + away * _PEER
        starts = np.flatnonzero(np.diff(records["step"], prepend=-1))
        numbers = records["step"][starts]
        at = np.searchsorted(numbers, steps["step"]).clip(max=len(numbers) - 1)
        known = numbers[at] == steps["step"]
        for name, total in (
            ("wait_ns", np.add.reduceat(np.maximum(covered, 0), starts)),
            ("ops", np.diff(starts, append=len(records))),
            ("signature", np.add.reduceat(mixed * (mixed >> np.uint64(29) | np.uint64(1)), starts)),
        ):
            steps[name] = np.where(known, total[at], 0)
        messages = np.logical_or.reduceat(peer >= 0, starts)
    steps["flags"] |= np.where(known & messages[at], np.uint32(Flag.MESSAGES), np.uint32(0))
