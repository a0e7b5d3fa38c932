"""Lateness from durations alone."""

from __future__ import annotations

import numpy as np
import pytest

from trainmover.telemetry.lateness import LatenessTable
from trainmover.telemetry.records import RECORD, Batch
from trainmover_console.view.terminal import strip


def batch(rank: int, rows: list[tuple[int, int, float]], *, epoch: int = 1) -> Batch:
    """Rows of (step, sequence, duration in seconds)."""
    records = np.zeros(len(rows), RECORD)
    for record, (step, sequence, duration) in zip(records, rows, strict=True):
        record["rank"], record["step"], record["sequence"] = rank, step, sequence
        record["duration_ns"] = round(duration * 1e9)
    return Batch("j", f"node-{rank}", 0, epoch, records)


def test_the_last_to_arrive_waits_least_and_is_late_by_the_difference() -> None:
    table = LatenessTable(3)
    table.add(batch(0, [(1, 1, 0.5), (1, 2, 0.1)]))
    table.add(batch(1, [(1, 1, 0.1), (1, 2, 0.1)]))
    assert list(table.steps()) == []
    table.add(batch(2, [(1, 1, 0.5), (1, 2, 0.2)]))
    ((step, late),) = table.steps()
    assert step == 1
    assert late == pytest.approx((0.1, 0.5, 0.0))
    assert table.latest(1, 5) == pytest.approx([0.5])


def test_collectives_of_two_epochs_are_not_mixed() -> None:
    table = LatenessTable(2)
    table.add(batch(0, [(1, 1, 0.5)], epoch=1))
    table.add(batch(1, [(1, 1, 0.1)], epoch=2))
    assert list(table.steps()) == []


def test_memory_is_bounded_when_a_rank_is_silent() -> None:
    table = LatenessTable(2)
    for step in range(20):
        table.add(batch(0, [(step, sequence, 0.1) for sequence in range(1000)]))
    assert len(table._open) <= 4096


def test_strip_shows_one_block_per_step() -> None:
    assert strip([0.0, 0.5, 1.0, 9.0], full_s=1.0) == " ▄██"
