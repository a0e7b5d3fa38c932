"""The Slurm script and the announcements of drained nodes, on a real Slurm."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.cluster import COMMAND, ClusterJob
from tests.support.looking import view_when, warm
from tests.support.ports import free_port
from tests.support.slurm import SlurmCluster, why_no_slurm

from trainmover.bus.credentials import Credentials
from trainmover.bus.nats.bus import NatsBus
from trainmover_console.demo.metrics import RunMetrics, read_run
from trainmover_console.view import JobView

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "deploy" / "slurm" / "train.sbatch")
PROGRAM = ["-m", "trainmover_executor.programs.gpt", "--steps", "1500", "--seed", "4"]
PROGRAM += ["--width", "32", "--layers", "1"]
SLOTS = 2

pytestmark = [
    pytest.mark.job,
    pytest.mark.walk,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or ""),
]


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path / "slurm", nodes=4) as cluster:
        yield cluster


class Submitted:
    """A job of ``deploy/slurm/train.sbatch``, seen from a login node."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        folder.mkdir()
        self._slurm = slurm
        port = free_port()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        settings = f"SLOTS={SLOTS},NATS_PORT={port},PATH={path},OMP_NUM_THREADS=1"
        command = ["sbatch", "--parsable", "--nodes=4", f"--export=ALL,{settings}", SCRIPT]
        self.id = slurm.ask(*command, *PROGRAM, cwd=folder)
        self.name = f"slurm-{self.id}"
        self.view = JobView(self.name)
        self._folder = folder / f"trainmover-{self.id}"
        self._keys = self._folder / "security" / "clients" / "operator"
        self._nats = f"nats://{socket.gethostname()}:{port}"
        self._said = folder / f"slurm-{self.id}.out"

    @property
    def metrics(self) -> RunMetrics:
        return read_run(self._folder / "metrics")

    @property
    def said(self) -> str:
        return self._said.read_text()

    async def until(self, reached: Callable[[JobView], bool]) -> None:
        """Wait until the job is as ``reached`` wants it."""
        view = JobView(self.name)
        credentials = Credentials.of_folder(self._keys)
        async with NatsBus(self._nats, name="test", credentials=credentials) as bus:
            await view_when(bus, view, reached)
        self.view = view

    def reached(self) -> None:
        """Wait until the bus answers; its keys are made by the job, and only trying tells."""
        deadline = time.monotonic() + 120
        while (told := self.cli("status")).returncode:
            assert time.monotonic() < deadline, told.stderr
            assert self._slurm.state_of(self.id) in {"PENDING", "RUNNING"}, told.stderr

    def node_of(self, slot: int) -> str:
        """Who fills a slot, as of the latest look."""
        return next(one.name for one in self.view.machines.values() if one.slot == slot)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command as the operator of the job."""
        return subprocess.run(
            [*COMMAND, *arguments, "--job", self.name, "--nats", self._nats],
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def noticing(self) -> subprocess.Popen[bytes]:
        """``trainmover notice slurm``, until it is told to end."""
        command = [*COMMAND, "notice", "slurm", "--job", self.name, "--nats", self._nats]
        return subprocess.Popen([*command, "--every", "1"], env=self._environment())

    def processes(self, node: str | None = None) -> list[int]:
        """What Slurm started for this job, on one node or on all."""
        marks = {f"SLURM_JOB_ID={self.id}", f"SLURM_CONF={self._slurm.env['SLURM_CONF']}"}
        if node is not None:
            marks.add(f"SLURMD_NODENAME={node}")
        return [pid for pid, environment in environments() if marks <= environment]

    def _environment(self) -> dict[str, str]:
        return {
            **self._slurm.env,
            "TRAINMOVER_NATS_NKEY": str(self._keys / "nkey"),
            "TRAINMOVER_NATS_CA": str(self._keys / "ca.pem"),
        }


async def training(slurm: SlurmCluster, folder: Path) -> Submitted:
    """A job that trains, with both standbys warm."""
    job = Submitted(slurm, folder)
    job.reached()
    await job.until(lambda view: warm(view, slots=SLOTS) == 2)
    return job


def environments() -> Iterator[tuple[int, set[str]]]:
    """Every process of this host with what its environment said when it began."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            yield int(path.parent.name), set(path.read_text(errors="replace").split("\0"))
        except OSError:
            continue


async def test_a_drained_node_is_moved_off_and_a_dead_one_is_replaced(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = await training(slurm, tmp_path / "work")
    drained = job.node_of(1)
    notices = job.noticing()
    try:
        reason = "reason=memory errors"
        slurm.ask("scontrol", "update", f"node={drained}", "state=drain", reason)
        await job.until(lambda view: any(m.state == "committed" for m in view.migrations.values()))
    finally:
        notices.send_signal(signal.SIGTERM)
        notices.wait(20)
    [moved] = job.view.migrations.values()
    assert (moved.kind, moved.leaver) == ("planned", drained)
    assert "memory errors" in job.view.incidents[moved.incident or ""].summary

    dying = job.node_of(1)
    assert dying != "n0", "the batch script and the services are there"
    for pid in job.processes(dying):
        os.kill(pid, signal.SIGKILL)
    await job.until(lambda view: len(view.migrations) == 2 and view.machines[dying].role == "lost")

    assert slurm.wait_for(job.id, timeout_s=240) == "COMPLETED", job.said
    assert f"job {job.name}: finished" in job.said
    with ClusterJob(tmp_path / "plain", "--nnodes", str(SLOTS), *PROGRAM) as plain:
        assert plain.finish(timeout_s=240) == 0, plain.output
        straight = read_run(plain.metrics)
    assert job.metrics.digests == straight.digests
    for rank, lines in straight.steps.items():
        bits = {line.step: line.loss_hex for line in lines}
        assert (
            bits.items() >= {line.step: line.loss_hex for line in job.metrics.steps[rank]}.items()
        )
        assert len(job.metrics.steps[rank]) >= len(bits) - 1  # killed between commit and line


async def test_an_operator_moves_from_the_login_node_and_scancel_leaves_nothing_behind(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    job = await training(slurm, tmp_path / "work")
    moved = job.cli("migrate", job.node_of(1), "--reason", "drain", "--yes")
    assert moved.returncode == 0, moved.stderr
    assert len(job.processes()) > 4
    slurm.ask("scancel", job.id)
    assert slurm.wait_for(job.id, timeout_s=60) == "CANCELLED"
    assert job.processes() == []
