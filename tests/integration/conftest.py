"""Real ranks without agents or bus: what the executor does on its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.practices import HABITS, SLOW_HABITS
from tests.support.ranks import Nursery, RanksJob

from trainmover.runtime import failpoints

JOBS = Path(__file__).parents[1] / "jobs"
KillAt = Callable[..., None]


def script_of(program: tuple[str, ...]) -> list[str]:
    """The command line of a program of ``tests/jobs``."""
    script = "practices.py" if program[0] in {*HABITS, *SLOW_HABITS} else "workloads.py"
    return [str(JOBS / script), *program]


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of fail-points that all ranks read."""
    rules = tmp_path_factory.mktemp("failpoints") / "rules.json"
    rules.write_text("[]")
    return rules


@pytest.fixture(scope="session")
def nursery(rules: Path) -> Iterator[Nursery]:
    nursery = Nursery(environment={failpoints.VARIABLE: str(rules)})
    yield nursery
    nursery.close()


@pytest.fixture
def kill_at(rules: Path, tmp_path: Path) -> Iterator[KillAt]:
    """Have the first process that reaches a point, as what ``match`` says, killed there."""

    def write(content: list[dict[str, object]]) -> None:
        draft = rules.with_suffix(".tmp")
        draft.write_text(json.dumps(content))
        draft.replace(rules)  # ranks read it at any moment

    def kill_at(point: str, **match: object) -> None:
        rule = {"point": point, "match": match, "do": "kill", "path": str(tmp_path / point)}
        write([rule])

    yield kill_at
    write([])


@dataclass
class Run:
    """What a run left behind: compared as a whole, bit for bit."""

    finals: list[dict[str, Any]]
    losses: list[dict[int, str]]


@dataclass
class Gate:
    """The program waits in the body of one step until the test opens it."""

    path: Path
    step: int

    @property
    def options(self) -> list[str]:
        return ["--hold-at", str(self.step), "--gate", str(self.path)]

    def wait_for(self, rank: int) -> None:
        """Wait until ``rank`` is at the gate."""
        deadline = time.monotonic() + 60
        while not self.path.with_suffix(f".{rank}").exists():
            assert time.monotonic() < deadline, f"rank {rank} did not reach step {self.step}"
            time.sleep(0.005)

    def open(self) -> None:
        self.path.touch()


@pytest.fixture(scope="session")
def undisturbed(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """The same program without any disturbance; each one is run once a session."""
    known: dict[tuple[int, tuple[int, ...], tuple[str, ...]], Run] = {}

    def run(*program: str, world: int = 4, ring: tuple[int, ...] = ()) -> Run:
        key = world, ring, program
        if key not in known:
            folder, script = tmp_path_factory.mktemp("undisturbed"), script_of(program)
            with RanksJob(nursery, script, slots=world, folder=folder, ring=ring) as job:
                known[key] = outcome(job)
        return known[key]

    return run


@pytest.fixture
def start(nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., tuple[RanksJob, Gate]]]:
    """Start a job that waits at a gate."""
    jobs: list[RanksJob] = []

    def begin(
        *program: str,
        gate_at: int = 5,
        slots: int = 4,
        ranks_per_slot: int = 1,
        redundancy: str = "auto",
        ring: tuple[int, ...] = (),
    ) -> tuple[RanksJob, Gate]:
        gate = Gate(tmp_path / "gate", gate_at)
        command = [*script_of(program), *gate.options]
        jobs.append(
            RanksJob(
                nursery,
                command,
                slots=slots,
                ranks_per_slot=ranks_per_slot,
                folder=tmp_path / "metrics",
                redundancy=redundancy,
                ring=ring,
            )
        )
        return jobs[-1], gate

    yield begin
    for job in jobs:
        job.close()


def outcome(job: RanksJob) -> Run:
    """Wait for the end of a job."""
    finals = job.finish()
    return Run(finals, [job.losses(rank) for rank in range(job.layout.world_size)])
