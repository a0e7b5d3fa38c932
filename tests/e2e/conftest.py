"""Jobs under ``trainmover run``, and the same programs without any disturbance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.cluster import ClusterJob

WORKLOADS = str(Path(__file__).parents[1] / "jobs" / "workloads.py")

StartJob = Callable[..., ClusterJob]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StartJob]:
    """Start jobs that end with the test."""
    jobs: list[ClusterJob] = []

    def start(*arguments: str) -> ClusterJob:
        jobs.append(ClusterJob(tmp_path / f"home-{len(jobs)}", *arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()
