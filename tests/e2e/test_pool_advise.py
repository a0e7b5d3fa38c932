"""How many standbys a job needs, from what its machines did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import WORKLOADS
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]


@pytest.mark.soak
def test_the_facts_of_a_real_job_say_how_many_standbys_it_needs(
    cluster: Callable[..., ClusterJob], tmp_path: Path
) -> None:
    gate, last_gate = tmp_path / "gate", tmp_path / "last"
    job = cluster(
        *("--nnodes", "2:3", WORKLOADS, "ddp", "--steps", "60"),
        *("--hold-at", "20", "--gate", str(gate)),
        *("--then-hold-at", "50", "--then-gate", str(last_gate)),
    )
    job.until(r"job\.formed")
    job.wait_until_ready(2)
    early = job.cli("pool", "advise")
    assert early.returncode == 2
    assert "no machine of the job has failed so far: give --mtbf" in early.stderr

    gate.touch()
    job.kill("node-0")
    job.until(r"migration\.committed .*node-0 -> node-2")
    alone = job.cli("pool", "advise")
    assert alone.returncode == 2
    assert "give --repair" in alone.stderr
    asked = job.cli("pool", "advise", "--repair", "1s", "--target", "90%", "--json")
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert (found["demand"]["machines"], found["there"]) == (2, 0)
    assert "1 failure seen in" in found["assumptions"][0]
    assert found["cautious"] >= found["standbys"] >= 1
    last_gate.touch()
    assert job.finish() == 0, job.output
