"""What active ranks compiled comes to standbys of other hosts, and the bits stay the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import Gate, outcome, script_of
from tests.support.ranks import Nursery, RanksJob

from trainmover.events.executor import PlanCommitted
from trainmover.security.secret import SECRET_VARIABLE, make_secret
from trainmover_executor.messages.worker import Warmed
from trainmover_executor.worker.to_standbys.compiled_folder import SETTLED_S, SHARE_VARIABLE

pytestmark = [
    pytest.mark.job,
    pytest.mark.soak,  # a minute of compiling
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
]

PROGRAM = ("inductor", "--steps", "60")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[..., Nursery]]:
    """Make a host with a compile cache of its own; the folder has the host's name."""
    make_secret(tmp_path / "secret")
    made: list[Nursery] = []

    def make(name: str, **environment: str) -> Nursery:
        environment[SECRET_VARIABLE] = str(tmp_path / "secret")
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / name)
        made.append(Nursery(environment=environment))
        return made[-1]

    yield make
    for each in made:
        each.close()


def settle(folder: Path) -> None:
    """Make the files of ``folder`` older than what is not sent yet."""
    for path in folder.rglob("*"):
        before = path.stat().st_mtime - SETTLED_S
        os.utime(path, (before, before))


def test_a_standby_of_another_host_compiles_nothing(
    host: Callable[..., Nursery], tmp_path: Path
) -> None:
    here, there = (host(name, **{SHARE_VARIABLE: "share"}) for name in ("here", "there"))
    alone = host("alone")
    with RanksJob(here, script_of(PROGRAM), slots=2, folder=tmp_path / "straight") as job:
        undisturbed = outcome(job)
    gate = Gate(tmp_path / "gate", 5)
    program = [*script_of(PROGRAM), *gate.options]
    with RanksJob(here, program, slots=2, folder=tmp_path / "metrics") as job:
        gate.wait_for(1)
        settle(tmp_path / "here")
        standby, joiner = job.standby("spare", 1, nursery=there)
        shipped = standby.expect(Warmed, timeout_s=200)
        other, _ = job.standby("spare-2", 1, nursery=alone)
        compiled = other.expect(Warmed, timeout_s=200)
        job.ranks[1].process.kill()
        gate.open()
        plan = job.recover(1, standby, joiner, source=0)
        job.ranks[0].expect(PlanCommitted)
        job.took(plan, standby)
        assert outcome(job) == undisturbed

    def libraries(name: str) -> set[str]:
        return {path.name for path in (tmp_path / name).rglob("*.so")}

    assert libraries("there") == libraries("here") == libraries("alone") != set()
    print(f"warm after {shipped.warm_s:.1f} s, by itself after {compiled.warm_s:.1f} s")
