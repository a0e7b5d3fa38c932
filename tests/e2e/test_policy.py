"""A policy file of a real job: it is read again while a machine is slow, and a bad one is told."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.test_steering import GPT, facts, slow
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

StartJob = Callable[..., ClusterJob]


@pytest.mark.soak  # the normal run tries it without ranks, in tests/unit/planner
def test_a_policy_is_changed_while_a_machine_is_slow(cluster: StartJob, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("keep_reserve: 1\nrules:\n- {name: calm, kind: straggler, then: ignore}\n")
    job = cluster("--nnodes", "3:5", "--policy", str(file), *GPT)
    job.until(r"job\.formed")
    job.wait_until_ready(3, standbys=2)
    with slow(job.runtime()["processes"]["node-2"]):
        line = job.until(r"incident\.opened .*straggler")
        assert "node-2" in line, job.output
        one = facts(job, "incident.opened")[-1][1]["id"]
        told = json.loads(job.cli("policy", "explain", one, "-o", "json").stdout)
        assert (told["decision"], told["rule"], told["machine"]) == ("ignore", "calm", "node-2")
        file.write_text("keep_reserve: 1\nrules:\n- {name: calm, kind: straggler, then: act}}\n")
        line = job.until(r"policy\.refused")
        assert f"{file}:3: this is no YAML" in line
        shown = job.cli("policy", "show")
        assert "calm" in shown.stdout
        assert "not in force" in shown.stderr
        assert facts(job, "migration.proposed") == []
        now = "keep_reserve: 1\nrules:\n- {name: now, kind: straggler, then: act}\n"
        file.write_text(f"{now}horizon: 1s\n")
        line = job.until(r"migration\.rejected")
        assert "costs more than it saves" in line, job.output
        file.write_text(now)
        line = job.until(r"migration\.committed")
        assert "node-2" in line, job.output
    assert "policy.refused" in (job.home / "logs" / job.name / "planner.log").read_text()
    changes = facts(job, "policy.changed")
    names = [
        (fact["policy"]["rules"][0]["name"], fact["policy"]["horizon_s"]) for _, fact in changes
    ]
    assert names == [("calm", 3_600.0), ("now", 1.0), ("now", 3_600.0)]
    is_weighed(job)
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130


def is_weighed(job: ClusterJob) -> None:
    """The numbers of the move that did not pay, and of the one that did, are on record."""
    (_, left), (_, moved) = facts(job, "migration.proposed")
    assert left["forecast"]["gain_s"] < 1.0 < left["forecast"]["pause_most_s"]
    assert moved["forecast"]["gain_s"] > moved["forecast"]["pause_most_s"] >= 10.0
    assert moved["forecast"]["lateness"] >= 0.05
    (size,) = {cost["state_bytes"] for _, cost in facts(job, "worker.costs") if cost["vote"]}
    assert moved["forecast"]["state_bytes"] == size > 0
    told = json.loads(job.cli("migration", "show", moved["migration"], "-o", "json").stdout)
    assert told["forecast"] == moved["forecast"]
    assert told["forecast_held"] is (told["pause_s"] <= told["forecast"]["pause_most_s"])
    planned = job.cli("migrate", "node-0", "--dry-run")
    assert "of 1 earlier move" in " ".join(planned.stdout.split()), planned


def test_a_bad_file_starts_no_job(cluster: StartJob, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("keep_reserv: 1\n")
    job = cluster("--nnodes", "2", "--policy", str(file), *GPT)
    assert job.finish() == 2
    assert f"{file}:1: there is no 'keep_reserv' here. Did you mean" in job.output
