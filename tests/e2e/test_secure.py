"""A whole local run on a bus that trusts nobody, and what becomes of those it does not trust."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import WORKLOADS
from tests.support.cluster import ClusterJob
from tests.support.lines import Lines

from trainmover.bus.credentials import CA, NKEY

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

StartJob = Callable[..., ClusterJob]


@contextlib.contextmanager
def subscriber(url: str, env: dict[str, str]) -> Iterator[Lines]:
    """``examples/subscribe.py`` with the key of a user who may only look."""
    script = Path(__file__).parents[2] / "examples" / "subscribe.py"
    with subprocess.Popen(
        [sys.executable, str(script), url, "job"],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        lines = Lines(process.stdout, what="the subscriber")
        try:
            yield lines
        finally:
            process.kill()
            lines.end()


def test_a_secured_run_moves_a_machine_and_refuses_the_wrong_people(
    cluster: StartJob, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    hold = ("--hold-at", "20", "--gate", str(gate))
    job = cluster("--secure", "--nnodes", "2:3", WORKLOADS, "ddp", "--steps", "200", *hold)
    job.until(r"job\.formed")
    clients = Path(job.runtime()["clients"])
    ops = {NKEY: str(clients / "ops" / "nkey"), CA: str(clients / "ops" / "ca.pem")}
    job.wait_until_ready(2)

    seen = job.cli("status", env=ops)
    assert seen.returncode == 0, seen.stderr
    assert "node-1" in seen.stdout

    reader = job.cli("migrate", "node-1", "--yes", env=ops)
    assert reader.returncode == 3, reader
    assert "may not publish 'tm.v1.job.request.migrate'" in reader.stderr
    address = job.runtime()["nats"]
    for env, hint in [
        ({}, "Set TRAINMOVER_NATS_CA"),
        ({CA: ops[CA]}, "Set TRAINMOVER_NATS_NKEY"),
    ]:
        stranger = job.cli("status", "--nats", address, env=env)
        assert stranger.returncode == 3, stranger
        assert hint in stranger.stderr

    job.kill("planner")
    job.until(r"service\.restarted +planner")  # told with the operator's key
    job.until(r"the planner runs again")

    with subscriber(address, ops) as lines:
        # The operator's key is the default.
        moved = job.cli("migrate", "node-1", "--yes", "--no-wait")
        assert moved.returncode == 0, moved.stderr
        gate.touch()
        job.until(r"migration\.committed .*node-1 -> node-2")
        for phase in ("preparing", "ready", "switching", "committed"):
            lines.until(re.escape(f"dev.trainmover.migration.{phase}.v1"))
    assert job.finish() == 0, job.output
    assert len(job.finals()) == 2

    for folder in clients.rglob("nkey"):
        assert folder.stat().st_mode & 0o077 == 0
    logs = "\n".join(path.read_text() for path in (job.home / "logs" / "job").glob("*.log"))
    assert "bus.forbidden" not in logs
    assert "bus.reading_refused" not in logs
