"""Two jobs on one bus, whose machines have the same names: neither notices the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import WORKLOADS
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]


@pytest.mark.soak
def test_one_job_is_moved_and_the_other_is_broken(
    nats_url: str, undisturbed: Callable[..., ClusterJob], tmp_path: Path
) -> None:
    program = (WORKLOADS, "ddp", "--steps", "200")

    def start(name: str) -> tuple[ClusterJob, Path]:
        gate = tmp_path / f"gate-{name}"
        shape = ("--nats", nats_url, "--slots", "2", "--standbys", "1")
        held = (*program, "--hold-at", "20", "--gate", str(gate))
        return ClusterJob(tmp_path / name, *shape, *held, name=name), gate

    (moved, first), (broken, second) = start("gpt"), start("mine")
    with moved, broken:
        for job in (moved, broken):
            job.until(r"job\.formed")
            job.wait_until_ready(2)
        said = moved.cli("migrate", "node-1", "--yes", "--no-wait")
        assert said.returncode == 0, said.stderr
        first.touch()
        moved.until(r"migration\.committed .*node-1 -> node-2 in slot 1")
        broken.kill("node-1")
        second.touch()
        broken.until(r"migration\.committed .*node-1 -> node-2 in slot 1")
        assert moved.finish() == 0, moved.output
        assert broken.finish() == 0, broken.output
        assert "migration.committed" in moved.output
        assert moved.output.count("migration.committed") == 1
        expected = undisturbed(2, *program)
        assert moved.finals() == broken.finals() == expected.finals()
