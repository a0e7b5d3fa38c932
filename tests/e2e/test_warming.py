"""A standby whose program fails in its shadow iterations is seen, and gets ready when it can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parents[1] / "programs" / "needs_a_file.py"
ERROR = "AssertionError: tokens.txt is missing"


def standby_of(job: ClusterJob) -> dict[str, Any]:
    machines = json.loads(job.cli("status", "-o", "json").stdout)["machines"]
    (standby,) = (one for one in machines if one["role"] == "standby")
    return standby


def test_a_failure_is_told_everywhere_and_tried_again(
    cluster: Callable[..., ClusterJob], tmp_path: Path
) -> None:
    lines = PROGRAM.read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if "assert options" in text)
    file = tmp_path / "tokens.txt"
    job = cluster("--nnodes", "2:3", str(PROGRAM), "--file", str(file))
    job.until(rf"node-\d is not ready for slot \d: {ERROR} at {PROGRAM.name}:{line}, in its shadow")

    standby = standby_of(job)
    assert not standby["ready_slots"]
    why = standby["not_ready"][0]
    assert (why["error"], why["where"]) == (ERROR, f"{PROGRAM}:{line}")
    assert why["attempts"] >= 1
    page = " ".join(job.cli("status").stdout.split())
    assert f"{ERROR} at {PROGRAM.name}:{line}, tried" in page
    doctor = json.loads(job.cli("doctor", "-o", "json").stdout)["findings"]
    assert [one["level"] for one in doctor if one["check"] == "standbys"] == ["problem"]

    file.touch()
    job.wait_until_ready(2)
    standby = standby_of(job)
    assert (standby["ready_slots"], standby["not_ready"]) == ([0, 1], [])
    assert job.output.count("is not ready") == 1, "each error is told once"
