"""A real job loses two machines in two waves, and gets one of them back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from tests.e2e.test_steering import GPT, facts
from tests.support.cluster import ClusterJob

# The normal run tries drains without ranks, in tests/simulation.
pytestmark = [pytest.mark.job, pytest.mark.soak, pytest.mark.timeout(400)]

StartJob = Callable[..., ClusterJob]


def test_two_machines_leave_in_two_waves(cluster: StartJob) -> None:
    job = cluster("--nnodes", "3:5", *GPT)
    job.until(r"job\.formed")
    job.wait_until_ready(3, standbys=2)
    dry = job.cli("drain", "node-0", "node-2", "--deadline", "2h", "--dry-run")
    assert "would be: 2 machines, 2 of them in slots: 2 waves of 1" in dry.stderr
    assert facts(job, "drain.started") == []
    drained = job.cli("drain", "node-0", "node-2", "--reason", "power", "--yes", "-o", "json")
    assert drained.returncode == 0, drained.stderr
    assert json.loads(drained.stdout)["outcome"] == "finished"
    moves = [fact["moves"] for _, fact in facts(job, "migration.committed")]
    assert [[one["leaver"] for one in wave] for wave in moves] == [["node-0"], ["node-2"]]
    assert {one["joiner"] for wave in moves for one in wave} == {"node-3", "node-4"}
    held = facts(job, "machine.quarantined")
    assert {fact["machine"]: fact["reason"] for _, fact in held} == {
        "node-0": "drain d-0001: power",
        "node-2": "drain d-0001: power",
    }
    assert job.cli("machine", "unquarantine", "node-0", "--reason", "power is back").returncode == 0
    job.wait_until_ready(3, standbys=1, generation=1)
    assert "no_drain" in job.cli("drain", "--pause").stderr
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130
