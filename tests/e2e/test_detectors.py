"""Detectors of others, and announcements, in the running stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import WORKLOADS
from tests.support.cluster import COMMAND, ClusterJob

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

StartJob = Callable[..., ClusterJob]
EXAMPLES = Path(__file__).parents[2] / "examples" / "detectors"
ENDLESS = (WORKLOADS, "ddp", "--steps", "1000000", "--pace", "0.02")

BAD = """
import itertools, time
from trainmover.detection import BaseDetector, Finding

class Raises(BaseDetector):
    def tick(self, now_s):
        raise RuntimeError("boom")

class Waits(BaseDetector):
    def tick(self, now_s):
        time.sleep(3600)

class Floods(BaseDetector):
    def tick(self, now_s):
        return (Finding("noise", f"m{n}", None, 0.5, "noise") for n in itertools.count())
"""
ENTRIES = """[trainmover.detectors]
raises = bad_detectors:Raises
waits = bad_detectors:Waits
floods = bad_detectors:Floods
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed plugins: the two examples, and three that misbehave."""
    target = tmp_path / "plugins"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-build-isolation", "--target", str(target)),
            *(str(EXAMPLES / name) for name in ("device_metrics", "loss_watcher")),
        ],
        check=True,
    )
    (target / "bad_detectors.py").write_text(BAD)
    info = target / "bad_detectors-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-detectors\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    paths = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return target


@pytest.fixture
def beside() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.terminate()
        process.wait(10)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def test_a_plugin_opens_an_incident_that_moves_a_machine_and_bad_ones_harm_nobody(
    cluster: StartJob, plugins: Path, tmp_path: Path, beside: list[subprocess.Popen[str]]
) -> None:
    job = cluster("--nnodes", "2:3", *ENDLESS)
    job.until(r"job\.formed")
    job.wait_until_ready(2)
    quarantined = {name for name in ("raises", "waits", "floods") if _said(job, name)}
    assert quarantined == {"raises", "waits", "floods"}

    metrics = tmp_path / "gpu.csv"
    metrics.write_text("index, temperature.gpu, ecc.errors.uncorrected.volatile.total\n0, 60, 0\n")
    feed = [sys.executable, "-m", "trainmover_device_metrics.feed", "--job", job.name]
    beside.append(
        subprocess.Popen(
            [*feed, "--nats", job.runtime()["nats"], "--machine", "node-1", "--file", metrics],
            text=True,
        )
    )
    with metrics.open("a") as file:
        file.writelines(["0, 60, 0\n", "1, 97, 0\n"])
    job.until(r"incident\.opened .*device node-1: node-1: device 1: 97 degrees Celsius, hot for")
    job.until(r"migration\.committed .*node-1 -> node-2 in slot 1")


def _said(job: ClusterJob, name: str) -> bool:
    return any(
        "detector.quarantined" in line and f'"{name}"' in line for line in job.output.splitlines()
    )


def test_an_announced_end_moves_the_machine_before_it_goes(
    cluster: StartJob, tmp_path: Path, beside: list[subprocess.Popen[str]]
) -> None:
    job = cluster("--nnodes", "2:3", *ENDLESS)
    job.until(r"job\.formed")
    job.wait_until_ready(2)
    server = subprocess.Popen(
        [*COMMAND, "notice", "serve", "--port", "0", "--job", job.name, "--token", "secret"],
        env={**os.environ, "TRAINMOVER_HOME": str(job.home), "NO_COLOR": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    beside.append(server)
    assert server.stderr is not None
    address = server.stderr.readline().split()[-1].replace("NAME", "node-0")
    body = {"kind": "preemption", "reason": "the spot instance is reclaimed", "leaves_in_s": 120}
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"Authorization": "Bearer secret"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        assert reply.status == 202
    job.until(r"incident\.opened .*notice node-0: .*preemption in 120 s")
    job.until(r"migration\.committed .*node-0 -> node-2 in slot 0")
    recording = str(tmp_path / "job.tmrec.gz")
    _ask(job, "job", "record", recording, "--seconds", "3", "--job", job.name)
    heard = json.loads(_ask(job, "detector", "replay", recording, "-o", "json"))
    findings = [(one["detector"], one["kind"], one["machine"]) for one in heard["findings"]]
    assert ("external", "notice", "node-0") in findings
    assert not heard["errors"]


def _ask(job: ClusterJob, *words: str) -> str:
    found = subprocess.run(
        [*COMMAND, *words],
        env={**os.environ, "TRAINMOVER_HOME": str(job.home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout
