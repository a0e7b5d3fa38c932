"""``trainmover run --check-determinism``: before any migration, with the name of what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.programs.drive import SCRIPTS
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]

PROGRAM = str(SCRIPTS / "twice_alike.py")


@pytest.mark.soak
def test_a_job_whose_bits_differ_ends_and_says_where(
    cluster: Callable[..., ClusterJob], tmp_path: Path
) -> None:
    head = ("--nnodes", "2:3", "--check-determinism", PROGRAM, str(tmp_path))
    job = cluster(*head, "system")
    assert job.finish() == 1, job.output
    assert "the gradient of module.0.weight" in job.output
    assert "session.track" in job.output
    job = cluster(*head, "generator")
    assert job.finish() == 0, job.output
