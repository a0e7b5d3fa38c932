"""What a job's facts say of lost machines."""

from __future__ import annotations

import pytest
from tests.unit import factories as make

from trainmover.events.machine import MachineLost, MachineQuarantined
from trainmover.events.migration import JobFinished
from trainmover.events.operator import MachineUnquarantined
from trainmover.job.topology import Frozen
from trainmover_simulator.jobs.losses import Losses

DEAD = make.Move(
    "m-0002",
    slot=0,
    leaver="node-0",
    joiner="node-2",
    after=make.membership_of("node-2", "node-1", epoch=2),
    kind="failure",
)
FORMED = make.FORMED[:4]


def losses(*facts: tuple[float, Frozen]) -> Losses:
    formed = [(0.0, one) for one in FORMED]
    return Losses.of(make.said(fact, at_s=at_s) for at_s, fact in (*formed, *facts))


def lost(name: str) -> MachineLost:
    return MachineLost(machine=name, reason="its process ended")


def test_a_job_that_has_not_formed_says_nothing() -> None:
    found = Losses.of(make.said(one) for one in FORMED[:3])
    assert (found.slots, found.failure_s, found.repair_s) == (None, None, None)


def test_failures_of_machines_with_slots_are_counted_over_all_slots() -> None:
    found = losses((1_000, lost("node-0")), (1_001, DEAD.committed()), (5_000, lost("node-1")))
    assert (found.slots, found.standbys) == (2, 0)
    assert found.failures == [1, 1]
    assert found.watched_s == 5_000
    assert found.failure_s == 2 * 5_000 / 2


def test_a_standby_that_is_lost_is_away_but_no_failure_of_a_slot() -> None:
    found = losses((1_000, lost("node-2")), (3_000, make.progress("node-0", 0, 9)))
    assert (found.failures, found.failure_s, found.away_s) == ([], None, 2_000)


def test_machines_that_are_lost_within_half_a_minute_are_one_failure() -> None:
    found = losses((100, lost("node-0")), (110, lost("node-1")), (500, make.ready("node-3", 0)))
    assert found.failures == [2]
    assert (found.group, found.group_share) == (2, 1.0)


def test_a_repair_ends_when_another_standby_is_warm() -> None:
    found = losses(
        (1_000, lost("node-0")),
        (1_001, DEAD.committed()),
        (1_500, make.registered("node-3")),
        (1_600, make.ready("node-3", 0)),
        (1_700, make.ready("node-3", 1)),
        (9_000, JobFinished(epoch=2, step=9)),
    )
    assert (found.away_s, found.returns, found.repair_s) == (600, 1, 600)


def test_a_repair_that_is_not_over_counts_with_its_time_so_far() -> None:
    found = losses(
        (1_000, lost("node-0")),
        (1_200, make.ready("node-3", 0)),
        (2_000, lost("node-1")),
        (2_800, make.progress("node-2", 0, 9)),
    )
    assert found.repair_s == (200 + 800) / 1


def test_a_cold_machine_that_gets_a_slot_at_once_ends_a_repair_too() -> None:
    after = make.membership_of("node-2", "node-3", epoch=3)
    move = make.Move("m-3", slot=1, leaver="node-1", joiner="node-3", after=after, kind="failure")
    found = losses(
        (0, lost("node-0")), (1, DEAD.committed()), (100, lost("node-1")), (400, move.committed())
    )
    assert found.failures == [1, 1]
    assert (found.returns, found.away_s) == (1, 400 + 300)


def test_a_standby_that_is_added_is_no_repair() -> None:
    found = losses((100, make.ready("node-9", 0)), (200, lost("node-0")), (300, lost("node-1")))
    assert (found.returns, found.away_s) == (0, 100)


def test_what_policy_moves_away_is_counted_until_it_is_let_back_in() -> None:
    found = losses(
        (10, make.MOVE.proposed()),
        (20, make.MOVE.committed()),
        (20, MachineQuarantined(machine="node-1", reason="slow")),
        (
            420,
            MachineUnquarantined(
                machine="node-1", reason="mended", requested_by="ops", ready_slots=(0,)
            ),
        ),
        (500, JobFinished(epoch=2, step=9)),
    )
    assert (found.moves, found.failures, found.repair_s) == (1, [], 400)


def test_what_an_operator_keeps_out_is_neither_lost_nor_repaired() -> None:
    kept_out = MachineQuarantined(machine="node-2", reason="new switch", requested_by="ada")
    let_in = MachineUnquarantined(
        machine="node-2", reason="done", requested_by="ada", ready_slots=(0,)
    )
    found = losses((100, kept_out), (200, lost("node-0")), (300, let_in), (500, lost("node-1")))
    assert (found.away_s, found.returns) == (300, 0)


def test_what_an_operator_moves_is_not_what_policy_wants() -> None:
    assert losses((20, make.MOVE.committed())).moves == 0


def test_who_is_exchanged_to_rebalance_is_not_away() -> None:
    proposed = make.MOVE.proposed().model_copy(update={"cause": "rebalance: node-1 is the slowest"})
    found = losses((10, proposed), (20, make.MOVE.committed()))
    assert (found.moves, found.failures, found.away_s) == (0, [], 0)


def test_nothing_after_its_end_counts() -> None:
    found = losses((100, JobFinished(epoch=1, step=9)), (200, lost("node-0")))
    assert (found.failures, found.watched_s) == ([], 100)
    assert found.standbys is None


def test_a_fact_whose_clock_is_behind_takes_no_time_back() -> None:
    found = losses((100, lost("node-0")), (90, lost("node-1")), (200, make.ready("node-3", 0)))
    assert found.failures == [2]
    assert found.away_s == pytest.approx(200)
