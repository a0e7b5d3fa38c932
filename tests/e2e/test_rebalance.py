"""A machine that is only a little slower is exchanged for a standby, and no bit changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.test_steering import facts
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

StartJob = Callable[..., ClusterJob]
PROGRAM = str(Path(__file__).parents[1] / "jobs" / "uneven.py")
STEPS = 400
SLOWER = 1.1
"""The straggler detector asks for more where a machine was so from the beginning."""


@pytest.mark.soak  # the normal run tries it in tests/simulation
def test_the_slowest_machine_is_exchanged_and_the_losses_are_the_same(
    cluster: StartJob, undisturbed: StartJob, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "node-1").write_text(str(SLOWER))
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "rebalance: off\nrules:\n- {name: others, kind: [straggler, degraded], then: ignore}\n"
    )
    options = ("--steps", str(STEPS), "--slow", str(slow))
    declared = ("--policy", str(policy), "--rebalance", "8s")  # the option comes before the file
    job = cluster("--nnodes", "3:4", *declared, PROGRAM, *options)
    line = job.until(r"incident\.opened .*slowest")
    assert "node-1" in line, job.output
    line = job.until(r"migration\.committed")
    assert "node-1 -> node-3 in slot 1" in line, job.output
    job.wait_until_ready(3, generation=1)  # who left is a standby again
    (_, proposed), *others = facts(job, "migration.proposed")
    assert others == []
    assert proposed["cause"].startswith("rebalance: node-1 is the slowest: rank 1 makes its peers")
    assert 0.03 <= proposed["forecast"]["lateness"] < 0.2
    assert facts(job, "machine.quarantined") == []
    shown = json.loads(job.cli("policy", "show", "-o", "json").stdout)
    assert shown["policy"]["rebalance"] == {"every": 8.0, "at_most": 1, "least": 0.03}
    told = json.loads(job.cli("migration", "show", proposed["migration"], "-o", "json").stdout)
    assert told["cause"] == proposed["cause"]
    assert job.finish(timeout_s=180) == 0, job.output
    moved = job.losses()

    assert [len(losses) for losses in moved] == [STEPS] * 3
    assert moved == undisturbed(3, PROGRAM, *options, "--step-s", "0").losses()


def test_how_often_is_checked_before_the_job_starts(cluster: StartJob) -> None:
    job = cluster("--nnodes", "2", "--rebalance", "soon", PROGRAM)
    assert job.finish() == 2
    assert "--rebalance: 'soon' is no duration: write for instance 90s" in job.output
