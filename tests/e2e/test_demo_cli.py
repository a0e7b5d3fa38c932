"""The demo and the local launcher as people use them: real machines, real training, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.lines import Lines

from trainmover.runtime import procfs
from trainmover_console.cli.exits import ExitCode
from trainmover_launcher import registry

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

PROGRAM = ("-m", "trainmover_executor.programs.gpt")
STEPS = 150
"""Of the demo: on a busy machine a standby takes most of them to take over from the slow one."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINMOVER_HOME", str(tmp_path / "home"))
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    return tmp_path


class Command:
    """A running ``trainmover`` command and what it prints."""

    def __init__(self, *argv: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainmover_console.cli", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out = Lines(self.process.stdout, what=argv[0])
        self.err = Lines(self.process.stderr, what=argv[0])

    def pids(self) -> list[int]:
        return [stat.pid for _, stat in procfs.descendants(self.process.pid)]

    def end(self, *, timeout_s: float = 300) -> int:
        code = self.process.wait(timeout_s)
        self.out.end()
        self.err.end()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.end()


@pytest.fixture
def started(home: Path) -> Iterator[list[Command]]:
    commands: list[Command] = []
    yield commands
    for command in commands:
        command.close()


def alive(pids: list[int]) -> list[int]:
    stats = [procfs.read_stat(pid) for pid in pids]
    return [stat.pid for stat in stats if stat is not None and stat.state != "Z"]


def leftovers(home: Path) -> list[str]:
    return [entry.name for entry in (home / "tmp").iterdir() if entry.name.startswith(("tm", "tr"))]


def test_the_demo_passes_and_leaves_nothing_behind(home: Path, started: list[Command]) -> None:
    report = home / "report.html"
    arguments = (
        "--slots",
        "3",
        "--standbys",
        "2",
        "--steps",
        str(STEPS),
        "--seed",
        "7",
        "--report",
        str(report),
    )
    started.append(demo := Command("demo", "--json", *arguments))
    demo.err.until(r"job\.formed")
    pids = demo.pids()
    assert len(pids) >= 3 + 5
    code = demo.end()
    verdict = json.loads(demo.out.text.splitlines()[-1])
    assert (code, verdict["verdict"]) == (ExitCode.OK, "pass"), (verdict["problems"], demo.err.text)
    assert verdict["bitwise_equal"] is True
    assert verdict["comparison"]["compared"] >= 3 * STEPS - 1
    planned, failure = verdict["migrations"]
    assert (planned["kind"], planned["slot"], planned["leaver"]) == ("planned", 2, "node-2")
    assert (failure["kind"], failure["slot"], failure["leaver"]) == ("failure", 0, "node-0")
    assert planned["steps_redone"] == 0
    assert failure["steps_redone"] <= 1
    assert planned["trace_id"] != failure["trace_id"]
    for move in verdict["migrations"]:
        assert 0 <= move["pause_s"] < verdict["restart_s"]
    assert "straggler node-2" in demo.err.text
    assert "TrainMover demo: " in report.read_text()
    assert alive(pids) == []
    assert registry.jobs() == []
    assert leftovers(home) == []


@pytest.mark.parametrize(
    "moment",
    [
        "-- disturbed run",
        pytest.param("job.formed", marks=pytest.mark.soak),
        pytest.param("step 2", marks=pytest.mark.soak),
    ],
)
def test_ctrl_c_ends_the_demo_at_any_moment(
    home: Path, started: list[Command], moment: str
) -> None:
    started.append(demo := Command("demo", "--report", str(home / "report.html")))
    demo.err.until(moment)
    pids = demo.pids()
    demo.process.send_signal(signal.SIGINT)
    assert demo.end(timeout_s=30) == ExitCode.INTERRUPTED
    assert alive(pids) == []
    assert registry.jobs() == []
    assert leftovers(home) == []
    assert not (home / "report.html").exists()


@pytest.mark.soak  # the normal run has tests/e2e/test_cluster.py, which also compares the bits
def test_training_finishes_without_bus_and_services(home: Path, started: list[Command]) -> None:
    metrics = home / "metrics"
    arguments = ("--nnodes", "2:3", "--job", "alone", "--metrics", str(metrics))
    started.append(run := Command("run", *arguments, *PROGRAM, "--steps", "60"))
    run.out.until("step   10")
    pids = run.pids()
    record = registry.find("alone")
    for name in ("bus", "detector", "planner"):
        os.kill(record.processes[name], signal.SIGKILL)
    assert run.end() == ExitCode.OK, run.err.text
    for name in ("bus", "detector", "planner"):
        assert f"the {name} is gone" in run.err.text
    for rank in range(2):
        lines = (metrics / f"rank-{rank}.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(60))
    assert alive(pids) == []


def test_a_program_that_fails_ends_the_job_and_says_why(home: Path, started: list[Command]) -> None:
    script = home / "train.py"
    script.write_text("raise ValueError('no such data set')\n")
    started.append(run := Command("run", "--nnodes", "2", str(script)))
    assert run.end() == ExitCode.FAILED
    assert "error:" in run.err.text
    assert "no such data set" in run.err.text
    assert registry.jobs() == []
