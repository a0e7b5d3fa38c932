"""A Slurm cluster of one host: a controller and several nodes, as processes of this test."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.ports import free_port

_SETTINGS = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
ReturnToService=1
SlurmdTimeout=20
KillWait=5
"""


def why_no_slurm() -> str | None:
    """Why no cluster can be made here; None when one can."""
    if os.geteuid() != 0:
        return "slurmd runs other users' programs: this needs root"
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed (Debian's slurm-wlm)" if missing else None


class SlurmCluster:
    """Nodes ``n0``, ``n1`` and so on.

    Attributes:
        env: What commands need to find it.
    """

    def __init__(self, folder: Path, *, nodes: int) -> None:
        self._folder = folder
        self._nodes = [f"n{index}" for index in range(nodes)]
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("state", *(f"spool-{node}" for node in self._nodes)):
            (folder / name).mkdir(parents=True)
        host = socket.gethostname()
        lines = [_SETTINGS.format(host=host, port=free_port(), folder=folder)]
        lines += [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1"
            for node in self._nodes
        ]
        lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def __enter__(self) -> SlurmCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, *command: str, cwd: Path | None = None) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run(
            command, cwd=cwd, env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def state_of(self, job: str) -> str:
        """``RUNNING``, ``COMPLETED`` and so on."""
        told = self.ask("scontrol", "--oneliner", "show", "job", job)
        return dict(each.split("=", 1) for each in told.split() if "=" in each)["JobState"]

    def wait_for(self, job: str, *, timeout_s: float) -> str:
        """The state in which a job ended; only asking tells."""
        deadline = time.monotonic() + timeout_s
        while (state := self.state_of(job)) in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}:
            assert time.monotonic() < deadline, f"job {job} is {state} after {timeout_s} s"
            time.sleep(0.5)
        return state

    def close(self) -> None:
        """End every daemon, and what a node still runs."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            if self._daemons:
                self.ask("scancel", "--full", "--user", "root")
                self._until(lambda: not self.ask("squeue", "--noheader"))
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self) -> None:
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self._folder.chmod(0o755)
        munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
        munge += [f"--{kind}-file={self._folder}/munge.{kind}" for kind in ("log", "pid", "seed")]
        self._daemon(*munge, f"--socket={self._folder}/munge.socket")
        self._until((self._folder / "munge.socket").exists)
        self._daemon("slurmctld", "-D")
        for node in self._nodes:
            self._daemon("slurmd", "-D", "-N", node)
        self._until(self._idle)

    def _daemon(self, *command: str) -> None:
        with (self._folder / "daemons.log").open("ab") as log:
            self._daemons.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))

    def _idle(self) -> bool:
        try:
            told = self.ask("sinfo", "--noheader", "--Node", "--format=%T")
        except AssertionError:
            return False  # the controller does not answer yet
        return told.split() == ["idle"] * len(self._nodes)

    def _until(self, true: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline, (self._folder / "daemons.log").read_text()
            time.sleep(0.2)
