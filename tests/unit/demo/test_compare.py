"""The comparison that the demo's verdict rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmover_console.demo.compare import compare
from trainmover_console.demo.metrics import RunMetrics, StepLine, parse_lines, read_run

STEPS, RANKS = 5, 2


def line(step: int, loss: float, *, machine: str = "a", epoch: int = 1) -> StepLine:
    return StepLine(step, 10.0 + step, loss, loss.hex(), epoch, machine)


def run(
    *, skip: tuple[int, int] | None = None, double: int | None = None, odd: int | None = None
) -> RunMetrics:
    steps = {}
    for rank in range(RANKS):
        lines = [line(step, step + rank / 8) for step in range(STEPS)]
        if rank == 1 and odd is not None:
            lines[odd] = line(odd, odd + 1 / 8 + 2**-50)
        if rank == 1 and double is not None:
            lines.insert(double, lines[double])
        steps[rank] = tuple(one for one in lines if (rank, one.step) != skip)
    return RunMetrics(steps=steps, digests={0: "d0", 1: "d1"}, damaged={})


def test_equal_runs() -> None:
    outcome = compare(run(), run(), ranks=RANKS, steps=STEPS)
    assert outcome.equal
    assert outcome.compared == STEPS * RANKS
    assert outcome.first is None


def test_shows_where_curves_part_to_the_last_bit() -> None:
    outcome = compare(run(odd=3), run(), ranks=RANKS, steps=STEPS)
    assert not outcome.equal
    assert outcome.first is not None
    assert (outcome.first.kind, outcome.first.rank, outcome.first.step) == ("loss", 1, 3)


@pytest.mark.parametrize("swap", [False, True])
def test_a_missing_step_fails_in_either_run(swap: bool) -> None:
    pair = (run(skip=(0, 4)), run())
    outcome = compare(*(reversed(pair) if swap else pair), ranks=RANKS, steps=STEPS)
    assert not outcome.equal
    assert outcome.first is not None
    assert (outcome.first.kind, outcome.first.step) == ("missing", 4)


def test_a_step_missing_in_both_fails() -> None:
    outcome = compare(run(skip=(0, 4)), run(skip=(0, 4)), ranks=RANKS, steps=STEPS)
    assert [one.detail for one in outcome.differences] == ["in both"]


@pytest.mark.parametrize("swap", [False, True])
def test_a_duplicated_step_fails_in_either_run(swap: bool) -> None:
    pair = (run(double=2), run())
    outcome = compare(*(reversed(pair) if swap else pair), ranks=RANKS, steps=STEPS)
    assert outcome.first is not None
    assert (outcome.first.kind, outcome.first.step) == ("duplicate", 2)


def test_a_step_beyond_the_end_fails() -> None:
    longer = run()
    more = {**longer.steps, 0: (*longer.steps[0], line(STEPS, 9.0))}
    outcome = compare(RunMetrics(more, longer.digests, {}), run(), ranks=RANKS, steps=STEPS)
    assert not outcome.equal


def test_only_the_line_a_killed_machine_took_with_it_may_lack() -> None:
    outcome = compare(run(skip=(0, 4)), run(), ranks=RANKS, steps=STEPS, may_lack={(0, 4)})
    assert outcome.equal
    assert outcome.unrecorded == ((0, 4),)
    other = compare(run(skip=(0, 3)), run(), ranks=RANKS, steps=STEPS, may_lack={(0, 4)})
    assert not other.equal
    reference = compare(run(), run(skip=(0, 4)), ranks=RANKS, steps=STEPS, may_lack={(0, 4)})
    assert not reference.equal


def test_final_states_must_agree() -> None:
    other = RunMetrics(run().steps, {0: "d0", 1: "else"}, {})
    outcome = compare(run(), other, ranks=RANKS, steps=STEPS)
    assert outcome.first is not None
    assert (outcome.first.kind, outcome.first.rank) == ("digest", 1)


def test_runs_that_wrote_nothing_are_not_equal() -> None:
    empty = RunMetrics({}, {}, {})
    assert not compare(empty, empty, ranks=RANKS, steps=STEPS).equal
    assert not compare(empty, empty, ranks=0, steps=0).equal


def test_reads_what_ranks_write_and_survives_a_torn_line(tmp_path: Path) -> None:
    whole = '{"step": 1, "t": 2.0, "loss": 0.5, "loss_hex": "0x1p-1", "epoch": 1, "machine": "a"}'
    (tmp_path / "rank-0.jsonl").write_text(f'{whole}\n{whole.replace(": 1,", ": 2,", 1)}\n{{"st')
    (tmp_path / "rank-0.final.json").write_text('{"steps": 2, "digest": "abc"}')
    found = read_run(tmp_path)
    assert [one.step for one in found.steps[0]] == [1, 2]
    assert found.digests == {0: "abc"}
    assert found.damaged == {0: 1}
    assert found.first_step_time_s == 2.0


def test_the_median_step_leaves_out_the_gap_of_a_switch() -> None:
    lines = [
        StepLine(1, 0.0, 1, "x", 1, "a"),
        StepLine(2, 1.0, 1, "x", 1, "a"),
        StepLine(3, 9.0, 1, "x", 2, "b"),
        StepLine(4, 10.5, 1, "x", 2, "b"),
    ]
    assert RunMetrics({0: tuple(lines)}, {}, {}).median_step_s == 1.25
    assert RunMetrics({}, {}, {}).median_step_s is None


def test_lines_that_are_no_steps_are_damaged() -> None:
    assert parse_lines(["{}", "[]", "7", "", "null"]) == ((), 5)
