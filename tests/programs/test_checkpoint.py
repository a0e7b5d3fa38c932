"""The program of docs/howto/checkpoint.md: saved, started again, disturbed in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, fences
from tests.programs.drive import Drive, Left, Spot

pytestmark = pytest.mark.job

PAGE = ROOT / "docs/howto/checkpoint.md"
SLOW = """
import time
from torch.distributed.checkpoint import filesystem
from trainmover_executor.worker.runtime import current_runtime

write = filesystem._FileSystemWriter.write_data

def slowly(self, plan, planner):
    while self.path.name == "40" and current_runtime().decisions.state.committed < 52:
        time.sleep(0.01)
    return write(self, plan, planner)

filesystem._FileSystemWriter.write_data = slowly
"""
RESULT = """
import json, sys
result = Path(sys.argv[1]) / f"result-{dist.get_rank()}.json"
result.write_text(json.dumps(session.digest()))
"""
WRAPPERS = ("fully_shard(model)", "model = DistributedDataParallel(model)")


@dataclass(frozen=True)
class Program:
    """The page's program, with a wrapper, and where it saves."""

    wrapper: str
    home: Path

    @property
    def saved(self) -> Path:
        return self.home / "checkpoints"

    def script(self, prelude: str = "") -> str:
        """Path of the program, as ``Drive`` wants it."""
        (text,) = (text for language, text in fences(PAGE) if language == "python")
        for old, new in (
            ("STEPS, EVERY = 200, 20", "STEPS, EVERY = 100, 20"),
            ('Path("checkpoints")', f"Path({str(self.saved)!r})"),
            ("\nfully_shard(model)\n", f"\n{self.wrapper}\n"),
        ):
            assert old in text
            text = text.replace(old, new)
        imports = "from torch.nn.parallel import DistributedDataParallel\n"
        self.home.mkdir(exist_ok=True)
        (self.home / "train.py").write_text(imports + prelude + text + RESULT)
        return str(self.home / "train")

    def whole(self) -> list[int]:
        return sorted(int(found.parent.name) for found in self.saved.glob("*/.metadata"))


@dataclass
class Saved:
    """An undisturbed run, and what it saved."""

    program: Program
    left: Left

    def at(self, steps: int, home: Path) -> Program:
        """A program that starts from the checkpoint of so many steps."""
        program = Program(self.program.wrapper, home)
        kept = self.program.saved / str(steps)
        shutil.copytree(kept, program.saved / str(steps))
        return program


SHARDED, WHOLE = WRAPPERS
"""The normal run saves whole models in test_programs.py, as imagenet does."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SHARDED, id="fsdp"),
        pytest.param(WHOLE, id="ddp", marks=pytest.mark.soak),
    ],
)
def saved(
    request: pytest.FixtureRequest,
    undisturbed: Callable[..., Left],
    tmp_path_factory: pytest.TempPathFactory,
) -> Saved:
    program = Program(request.param, tmp_path_factory.mktemp("saved"))
    left = undisturbed(program.script())
    assert program.whole() == [20, 40, 60, 80, 100]
    return Saved(program, left)


def goes_on(left: Left, saved: Left, *, start: int) -> None:
    """``left`` began at ``start`` and came to the same end; killed machines may keep a line."""
    assert left.results == saved.results
    for mine, theirs in zip(left.losses, saved.losses, strict=True):
        assert mine.items() <= theirs.items()
        assert start <= min(mine) <= start + 1
        assert len(mine) >= len(theirs) - start - 1


def test_it_goes_on_with_the_same_bits(saved: Saved, drive: Drive, tmp_path: Path) -> None:
    program = saved.at(40, tmp_path / "again")
    goes_on(drive.undisturbed(program.script()), saved.left, start=40)
    assert program.whole() == [40, 60, 80, 100]


def test_a_crash_and_a_move_after_it_started_again_change_no_bit(
    saved: Saved, drive: Drive, tmp_path: Path
) -> None:
    program = saved.at(40, tmp_path / "again")
    spot = Spot("step.begin", 55, 2)
    left = drive.killed(program.script(), spots=[spot], warm_at=44, then_moves=(0, 70))
    goes_on(left, saved.left, start=40)
    assert program.whole() == [40, 60, 80, 100]


def test_a_standby_that_comes_after_a_newer_checkpoint_was_saved(
    saved: Saved, drive: Drive, tmp_path: Path
) -> None:
    program = saved.at(40, tmp_path / "again")
    goes_on(drive.moved(program.script(), slot=1, at=84, late=True), saved.left, start=40)
    assert program.whole() == [40, 60, 80, 100]


def test_a_standby_that_comes_when_its_rank_is_dead(
    saved: Saved, drive: Drive, tmp_path: Path
) -> None:
    """It has no recording, and finds a newer checkpoint than the job started from."""
    program = saved.at(40, tmp_path / "again")
    left = drive.replaced_late(program.script(), spot=Spot("step.begin", 85, 2))
    goes_on(left, saved.left, start=40)
    # On a slow host the machine dies while 80 is still written, which then is not complete.
    assert set(program.whole()) - {80} == {40, 60, 100}


@pytest.mark.parametrize("killed", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_a_crash_while_a_checkpoint_is_written_loses_it_and_changes_no_bit(
    killed: int, saved: Saved, drive: Drive, tmp_path: Path
) -> None:
    program = Program(saved.program.wrapper, tmp_path / "slow")
    left = drive.killed(program.script(SLOW), spots=[Spot("step.begin", 45, killed)])
    left.same_as(saved.left, killed=killed)
    assert program.whole() == [20, 60, 80, 100]


def test_a_crash_while_a_save_waits_for_the_one_before(
    saved: Saved, drive: Drive, tmp_path: Path
) -> None:
    program = Program(saved.program.wrapper, tmp_path / "slow")
    slow = SLOW.replace("    while", "    if").replace("< 52", "< 59").replace("0.01", "4")
    left = drive.killed(program.script(slow), spots=[Spot("between.begin", 60, 1)])
    left.same_as(saved.left, killed=1)
    assert program.whole() == [20, 60, 80, 100]


def test_a_crash_as_a_checkpoint_begins_has_it_begun_again(
    saved: Saved, drive: Drive, tmp_path: Path
) -> None:
    program = Program(saved.program.wrapper, tmp_path / "between")
    left = drive.killed(program.script(), spots=[Spot("between.begin", 40, 1)])
    left.same_as(saved.left, killed=1)
    assert program.whole() == [20, 40, 60, 80, 100]


def test_a_planned_move_waits_for_the_checkpoint_that_is_written(
    saved: Saved, drive: Drive, tmp_path: Path
) -> None:
    program = Program(saved.program.wrapper, tmp_path / "slow")
    left = drive.moved(program.script(SLOW), slot=1, at=44)
    left.same_as(saved.left)
    assert program.whole() == [20, 40, 60, 80, 100]
