"""A standby that shares Inductor's folder compiles nothing, and the bits stay the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import Gate, outcome, script_of
from tests.support.ranks import Nursery, RanksJob

from trainmover.events.executor import PlanCommitted
from trainmover_executor.messages.worker import Warmed

pytestmark = [
    pytest.mark.job,
    pytest.mark.soak,  # a minute of compiling
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
]

PROGRAM = ("inductor", "--steps", "60")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[[str], Nursery]]:
    """Make a host whose machines compile into the folder of a name."""
    made: list[Nursery] = []

    def make(folder: str) -> Nursery:
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / folder)}
        made.append(Nursery(environment=environment))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_standby_that_shares_the_folder_compiles_nothing(
    host: Callable[[str], Nursery], tmp_path: Path
) -> None:
    here, there, alone = host("shared"), host("shared"), host("alone")
    with RanksJob(here, script_of(PROGRAM), slots=2, folder=tmp_path / "straight") as job:
        undisturbed = outcome(job)
    before = libraries(tmp_path / "shared")
    gate = Gate(tmp_path / "gate", 5)
    program = [*script_of(PROGRAM), *gate.options]
    with RanksJob(here, program, slots=2, folder=tmp_path / "metrics") as job:
        gate.wait_for(1)
        standby, joiner = job.standby("spare", 1, nursery=there)
        shared = standby.expect(Warmed, timeout_s=200)
        other, _ = job.standby("spare-2", 1, nursery=alone)
        compiled = other.expect(Warmed, timeout_s=200)
        job.ranks[1].process.kill()
        gate.open()
        plan = job.recover(1, standby, joiner, source=0)
        job.ranks[0].expect(PlanCommitted)
        job.took(plan, standby)
        assert outcome(job) == undisturbed
    assert libraries(tmp_path / "shared") == before == libraries(tmp_path / "alone") != set()
    print(f"warm after {shared.warm_s:.1f} s, by itself after {compiled.warm_s:.1f} s")


def libraries(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.so")}
