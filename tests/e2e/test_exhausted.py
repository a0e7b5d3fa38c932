"""No machine is left: the job ends with a checkpoint and an exit code, and goes on from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tests.jobs
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]

PROGRAM = str(Path(tests.jobs.__path__[0]) / "resumable.py")


def digest(job: ClusterJob) -> tuple[int, str]:
    (found,) = re.findall(r"resumed at (\d+) final ([0-9a-f]{64})", job.output)
    return int(found[0]), found[1]


def test_a_job_without_machines_saves_and_goes_on_later(
    cluster: Callable[..., ClusterJob],
    undisturbed: Callable[..., ClusterJob],
    tmp_path: Path,
) -> None:
    gate, folder = tmp_path / "gate", tmp_path / "checkpoint"
    folder.mkdir()
    program = (PROGRAM, "--steps", "30", "--folder", str(folder))
    policy = ("--when-exhausted", "checkpoint", "--exhausted-after", "0.5")
    job = cluster("--nnodes", "2", *policy, *program, "--hold-at", "10", "--gate", str(gate))
    job.until(r"holds at 10")
    job.kill("worker-1")
    gate.touch()
    assert job.finish() == 75, job.output
    saved = re.search(rf"{folder}/rank0.pt \(step (\d+)\)", job.output)
    assert saved is not None, job.output

    resumed = undisturbed(2, *program, "--resume")
    expected = undisturbed(2, *program)
    assert digest(resumed) == (int(saved[1]), digest(expected)[1])
