"""What a rank noted last is heard, however it ends."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from tests.support.ranks import Nursery, Rank, RanksJob

from trainmover.events.executor import PlanCommitted, StepProgress
from trainmover.runtime import failpoints
from trainmover_executor.messages.worker import Broke, Warmed

pytestmark = pytest.mark.job

PROGRAM = str(Path(__file__).parents[1] / "jobs" / "last_words.py")
YIELDS = str(Path(__file__).parents[1] / "programs" / "yields_from_inside.py")
ENDS_LATE = str(Path(__file__).parents[1] / "jobs" / "ends_late.py")
SAVES = str(Path(__file__).parents[1] / "jobs" / "saves_in_threads.py")
LEAVES = str(Path(__file__).parents[1] / "programs" / "leaves_early.py")


def test_a_program_that_fails_is_heard_to_the_end(nursery: Nursery, tmp_path: Path) -> None:
    with RanksJob(nursery, [PROGRAM], slots=2, folder=tmp_path) as job:
        for rank in job.ranks:
            for step in range(100):
                assert rank.expect(StepProgress).step == step
            assert rank.process.wait(timeout_s=10).exit_code == 3


@pytest.mark.parametrize(("how", "exit_code"), [("return", 0), ("exit", 7), ("raise", 1)])
def test_what_a_program_leaves_to_the_interpreters_end_is_done(
    how: str, exit_code: int, nursery: Nursery, tmp_path: Path
) -> None:
    """Threads that still write, exit handlers, logging that holds back."""
    with RanksJob(nursery, [ENDS_LATE, str(tmp_path), how], slots=1, folder=tmp_path) as job:
        assert job.ranks[0].process.wait(timeout_s=30).exit_code == exit_code
    for name in ("handler", "thread", "pool", "log"):
        assert (tmp_path / name).read_text().strip() == "whole", name


def test_a_leaver_that_is_released_ends_once_its_threads_have(
    nursery: Nursery, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    with RanksJob(nursery, [SAVES, str(saved)], slots=2, folder=tmp_path) as job:
        standby, joiner = job.standby("spare", 1)
        standby.expect(Warmed)
        job.move(1, standby, joiner)
        standby.expect(PlanCommitted)
        ended_when_released(job.ranks[1], saved)


def test_a_leaver_that_is_released_at_once_ends_in_the_same_way(tmp_path: Path) -> None:
    """The joiner has all that it needs: it may commit before the leaver has said so itself."""
    saved, held = tmp_path / "saved", tmp_path / "held"
    saved.mkdir()
    rule = {"point": "leave.sent", "do": "hold", "path": str(held)}
    (tmp_path / "rules.json").write_text(json.dumps([rule]))
    nursery = Nursery(environment={failpoints.VARIABLE: str(tmp_path / "rules.json")})
    with RanksJob(nursery, [SAVES, str(saved)], slots=2, folder=tmp_path) as job:
        standby, joiner = job.standby("spare", 1)
        standby.expect(Warmed)
        job.move(1, standby, joiner)
        deadline = time.monotonic() + 60
        while not held.with_suffix(".reached").exists():
            assert time.monotonic() < deadline, "the leaver did not hand over"
            time.sleep(0.005)
        ended_when_released(job.ranks[1], saved)
    nursery.close()


def ended_when_released(leaver: Rank, saved: Path) -> None:
    """Do what an agent does that was told to release the slot."""
    process = leaver.process
    process.kill(signal.SIGTERM)
    assert process.wait(timeout_s=30).exit_code == 0
    files = [*saved.glob(f"{process.pid}-*.pt")]
    assert files
    assert saved / f"{process.pid}--1.pt" not in files
    assert {file.read_text() for file in files} == {"half whole"}


@pytest.mark.parametrize(
    ("how", "exit_code", "error", "line"),
    [
        ("break", 0, "the program ended in its shadow iterations, before it took a slot", None),
        ("exit", 3, "the program ended in its shadow iterations: sys.exit(3)", 29),
        ("raise", 1, "RuntimeError: inconsistent tensor size", 30),
    ],
)
def test_a_standby_whose_program_ends_says_why(
    *, how: str, exit_code: int, error: str, line: int | None, nursery: Nursery, tmp_path: Path
) -> None:
    with RanksJob(nursery, [LEAVES, how], slots=2, folder=tmp_path) as job:
        standby, _ = job.standby("spare", 1)
        broke = standby.expect(Broke)
        assert broke.error.startswith(error)
        assert broke.where == ("" if line is None else f"{LEAVES}:{line}")
        assert standby.process.wait(timeout_s=10).exit_code == exit_code


def test_a_generator_that_yields_from_inside_a_step_ends_at_its_first_step(
    nursery: Nursery, tmp_path: Path
) -> None:
    with RanksJob(nursery, [YIELDS], slots=2, folder=tmp_path) as job:
        for rank in job.ranks:
            assert rank.process.wait(timeout_s=60).exit_code == 1
        assert not list(tmp_path.glob("rank-*.jsonl"))  # no step was completed
