"""The whole system with tensors on a GPU that all ranks share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cuda.conftest import needs_a_gpu
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(600), needs_a_gpu]

PROGRAM = ("-m", "trainmover_executor.programs.gpt", "--device", "cuda", "--steps", "400")


def test_a_move_and_a_crash_change_no_bit(cluster: Callable[..., ClusterJob]) -> None:
    job = cluster("--nnodes", "4:5", *PROGRAM)
    job.until(r"job\.formed")
    job.wait_until_ready(4)
    moved = job.cli("migrate", "node-1", "--yes", "--no-wait")
    assert moved.returncode == 0, moved.stderr
    job.until(r"migration\.committed .*node-1 -> ")
    job.wait_until_ready(4, generation=1)
    job.kill("node-0")
    job.until(r"migration\.committed .*node-0 -> ")
    assert job.finish(timeout_s=300) == 0, job.output

    undisturbed = cluster("--nnodes", "4", *PROGRAM)
    assert undisturbed.finish(timeout_s=300) == 0, undisturbed.output
    assert job.finals() == undisturbed.finals()
