"""The simulator foretells what a real job does; ``benchmarks.fidelity`` for a minute.

A soak test: what a busy host does to a few pauses is no matter of the simulator.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainmover_console.cli.app import app

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.job, pytest.mark.soak]


@pytest.mark.timeout(600)
def test_every_other_half_minute_of_a_job_is_foretold(tmp_path: Path) -> None:
    """Pauses of a few faults on a host that is shared are in ETTR alone, with a wider bound."""
    recording = tmp_path / "job.tmrec.gz"
    command = [sys.executable, "-m", "benchmarks.fidelity", "--json", "--minutes", "1"]
    done = subprocess.run(
        [*command, "--keep", str(recording)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["real"]["migrations"] > 1
    assert found["deviation"]["migrations"] == 0
    assert abs(found["deviation"]["ettr"]) < 0.05
    assert found["planner"]["migrations"] == found["real"]["migrations"]
    answer = CliRunner().invoke(app, ["simulate", "--from", str(recording), "--json"])
    assert answer.exit_code == 0, answer.stderr
    asked = json.loads(answer.stdout)
    assert (asked["gpus"], asked["standbys"]) == (4, 2)
    assert asked["observed"]["interruptions"] >= found["real"]["migrations"]
