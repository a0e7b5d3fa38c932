"""Runs a program of ``scripts`` on real ranks: undisturbed, with a planned move, with kills."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.ranks import Nursery, Rank, RanksJob

from trainmover.events.executor import PlanCommitted, PlanFailed, StepBroken
from trainmover.events.machine import MachineDataDiffers
from trainmover_executor.messages.worker import Warmed

SCRIPTS = Path(__file__).parent / "scripts"
WORLD = 3


@dataclass(frozen=True)
class Spot:
    """A fail-point at one rank after so many steps.

    Attributes:
        point: Its name.
        step: Steps completed by the job.
        rank: Whose.
        steps: For how many steps from ``step`` on it is looked for; the first time counts.
    """

    point: str
    step: int
    rank: int
    steps: int = 1


@dataclass
class Left:
    """What a run left behind: compared as a whole, bit for bit."""

    results: list[dict[str, Any]]
    losses: list[dict[int, str]]

    def same_as(self, other: Left, *, killed: int | None = None) -> None:
        """Compare with an undisturbed run.

        Args:
            other: The undisturbed run's.
            killed: A rank whose machine may have taken the line of a step along.
        """
        for rank, (mine, theirs) in enumerate(zip(self.results, other.results, strict=True)):
            assert mine == theirs, f"rank {rank} wrote {mine} instead of {theirs}"
        for rank, (mine, theirs) in enumerate(zip(self.losses, other.losses, strict=True)):
            missing = theirs.keys() - mine.keys()
            assert len(missing) <= (rank == killed), f"rank {rank} did not log steps {missing}"
            assert mine == {step: theirs[step] for step in mine}, f"losses of rank {rank}"


def _losses(folder: Path, rank: int) -> dict[int, str]:
    lines = (folder / f"rank-{rank}.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    steps = [record["step"] for record in records]
    assert len(steps) == len(set(steps)), f"rank {rank} logged a step twice: {steps}"
    return {record["step"]: record["loss_hex"] for record in records}


class Rules:
    """The file of fail-points that all ranks read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rules: list[dict[str, Any]] = []
        self.write()

    def write(self) -> None:
        draft = self.path.with_suffix(".tmp")
        draft.write_text(json.dumps(self._rules))
        draft.replace(self.path)

    def add(self, spot: Spot, do: str, folder: Path) -> Path:
        path = folder / uuid.uuid4().hex
        for step in range(spot.step, spot.step + spot.steps):
            match = {"rank": spot.rank, "step": step, "machine": f"m{spot.rank}"}
            rule = {"point": spot.point, "match": match, "do": do, "path": str(path)}
            self._rules.append(rule)
        self.write()
        return path

    def clear(self) -> None:
        self._rules.clear()
        self.write()


def _wait(condition: Any, what: str, *, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


class Drive:
    """Starts programs, and disturbs them.

    Args:
        nursery: Forks ranks.
        rules: Their fail-points.
        folder: Where they write.
    """

    def __init__(self, nursery: Nursery, rules: Rules, folder: Path) -> None:
        self._nursery = nursery
        self._rules = rules
        self._folder = folder

    @contextlib.contextmanager
    def job(self, script: str, *arguments: str, redundancy: str = "auto") -> Iterator[RanksJob]:
        folder = self._folder / uuid.uuid4().hex[:8]
        folder.mkdir()
        command = [str(SCRIPTS / f"{script}.py"), str(folder), *arguments]
        try:
            with RanksJob(
                self._nursery, command, slots=WORLD, folder=folder, redundancy=redundancy
            ) as job:
                yield job
        finally:
            self._rules.clear()

    def undisturbed(self, script: str, *arguments: str) -> Left:
        with self.job(script, *arguments) as job:
            return self.left(job)

    @staticmethod
    def left(job: RanksJob) -> Left:
        for rank in job.ranks:
            status = rank.process.wait(timeout_s=120)
            assert status.exit_code == 0, f"rank {rank.spec.rank} exited with {status}"
        told = [each for rank in job.everyone for each in rank.seen]
        differs = [each for each in told if isinstance(each, MachineDataDiffers)]
        assert not differs, f"a standby that has the same data said {differs[0]}"
        results = [
            json.loads((job.folder / f"result-{rank}.json").read_text()) for rank in range(WORLD)
        ]
        return Left(results, [_losses(job.folder, rank) for rank in range(WORLD)])

    def moved(
        self, script: str, *arguments: str, slot: int = 1, at: int = 4, late: bool = False
    ) -> Left:
        """With a planned move of ``slot`` that begins after ``at`` steps.

        Args:
            script: Name of the program.
            arguments: Its arguments.
            slot: Which.
            at: Steps.
            late: The standby is started only then.
        """
        with self.job(script, *arguments) as job:
            held = self._hold(job, slot, at)
            if late:
                _wait(held.with_suffix(".reached").exists, f"step {at} was not reached")
            standby, joiner = job.standby("moves", slot)
            self._move(job, slot, standby, joiner, held=held)
            return self.left(job)

    def killed(
        self,
        script: str,
        *arguments: str,
        spots: list[Spot],
        warm_at: int = 4,
        then_moves: tuple[int, int] | None = None,
        redundancy: str = "auto",
    ) -> Left:
        """With machines killed at ``spots``, one after the other; each is replaced.

        Args:
            script: Name of the program.
            arguments: Its arguments.
            spots: Where, in order.
            warm_at: Nobody goes on behind so many steps before all standbys are warm.
            then_moves: (slot, steps): afterwards a planned move of the slot, after so many steps.
            redundancy: Where the state of a rank survives its machine.
        """
        with self.job(script, *arguments, redundancy=redundancy) as job:
            held = self._hold(job, spots[0].rank, warm_at)
            standbys = [job.standby(f"spare{i}", spot.rank) for i, spot in enumerate(spots)]
            for standby, _ in standbys:
                # Without a first step it has nothing to replay, and waits a minute for that.
                standby.expect(Warmed, timeout_s=120)
            _wait(held.with_suffix(".reached").exists, f"step {warm_at} was not reached")
            kills = [self._rules.add(spot, "kill", job.folder) for spot in spots]
            if then_moves is not None:
                slot, at = then_moves
                moving, mover = job.standby("moves", slot)
                hold = self._hold(job, slot, at)
            held.with_suffix(".go").touch()
            for spot, kill, (standby, joiner) in zip(spots, kills, standbys, strict=True):
                self._replace(job, spot, kill, standby, joiner)
            if then_moves is not None:
                self._move(job, slot, moving, mover, held=hold)
            return self.left(job)

    def kills(self, job: RanksJob, spot: Spot) -> None:
        """Have a machine killed, and nobody take its place."""
        kill = self._rules.add(spot, "kill", job.folder)
        _wait(kill.with_suffix(".reached").exists, f"nobody reached {spot}")

    def replaced_late(self, script: str, *arguments: str, spot: Spot) -> Left:
        """With a machine killed at ``spot``; its standby is started after that."""
        with self.job(script, *arguments) as job:
            kill = self._rules.add(spot, "kill", job.folder)
            _wait(kill.with_suffix(".reached").exists, f"nobody reached {spot}")
            job.ranks[spot.rank].process.wait(timeout_s=10)
            standby, joiner = job.standby("late", spot.rank)
            standby.expect(Warmed)
            self._replace(job, spot, kill, standby, joiner)
            return self.left(job)

    def _hold(self, job: RanksJob, rank: int, step: int) -> Path:
        return self._rules.add(Spot("step.next", step, rank), "hold", job.folder)

    @staticmethod
    def _move(job: RanksJob, slot: int, standby: Rank, joiner: Any, *, held: Path) -> None:
        standby.expect(Warmed)
        _wait(held.with_suffix(".reached").exists, "the step of the move was not reached")
        plan = job.move(slot, standby, joiner)
        held.with_suffix(".go").touch()
        for rank in [*(r for r in job.ranks if r.spec.rank != slot), standby]:
            rank.expect(PlanCommitted)
        job.ranks[slot].process.kill()
        job.took(plan, standby)

    def _replace(self, job: RanksJob, spot: Spot, kill: Path, standby: Rank, joiner: Any) -> None:
        _wait(kill.with_suffix(".reached").exists, f"nobody reached {spot}")
        survivors = [rank for rank in job.ranks if rank.spec.rank != spot.rank]
        job.ranks[spot.rank].process.wait(timeout_s=10)
        broken = survivors[0].expect(StepBroken)
        del broken
        plan = job.recover(spot.rank, standby, joiner, source=(spot.rank + 1) % WORLD)
        for rank in [*survivors, standby]:
            self._committed(rank)
        job.took(plan, standby)

    @staticmethod
    def _committed(rank: Rank) -> None:
        while True:
            said = rank.expect(PlanCommitted, PlanFailed)
            assert not isinstance(said, PlanFailed), said
            return


def remembered(
    nursery: Nursery, rules: Rules, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Left]:
    """What a program leaves behind without any disturbance; each one is run once."""
    known: dict[tuple[str, ...], Left] = {}

    def run(*command: str) -> Left:
        if command not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            known[command] = Drive(nursery, rules, folder).undisturbed(*command)
        return known[command]

    return run
