"""A job whose services and machines are processes that a test starts one by one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster import COMMAND
from tests.support.lines import Lines

__all__ = ["Site"]


class Site:
    """Services and machines of one job on a bus, each a process; of any release.

    Args:
        folder: For logs and what programs leave.
        url: The bus.
        job: Its name.
        slots: Machines that train; one more may stand by.
    """

    def __init__(self, folder: Path, url: str, *, job: str, slots: int) -> None:
        self.folder, self.url, self.job, self.slots = folder, url, job, slots
        self.metrics = folder / "metrics"
        self._env = {**os.environ, "TRAINMOVER_HOME": str(folder), "NO_COLOR": "1"}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._lines: dict[str, Lines] = {}

    def start(self, name: str, module: str, *arguments: str, env: dict[str, str]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--job", self.job, "--nats", self.url, *arguments],
            env={**self._env, "OMP_NUM_THREADS": "1", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes[name] = process
        self._lines[name] = Lines(process.stdout, what=name)

    def services(self, env: dict[str, str], *, called: str) -> None:
        self.start(f"{called} planner", "trainmover_planner", "--lease", "1", env=env)
        self.start(f"{called} detector", "trainmover_detector", "--lease", "1", env=env)

    def machine(
        self, number: int, *program: str, env: dict[str, str], labels: Sequence[str] = ()
    ) -> None:
        shape = ("--nnodes", f"{self.slots}:{self.slots + 1}", "--host", "127.0.0.1")
        where = [word for label in labels for word in ("--label", label)]
        files = ("--metrics-dir", str(self.metrics), "--log-dir", str(self.folder / "logs"))
        me = ("--machine", f"node-{number}")
        agent = "trainmover_executor.agent"
        options = (*me, *shape, *where, *files)
        self.start(f"node-{number}", agent, *options, "--", *program, env=env)

    def cli(self, *arguments: str) -> str:
        done = subprocess.run(
            [*COMMAND, *arguments, "--job", self.job, "--nats", self.url],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr}\n{self.said()}"
        return done.stdout

    def end(self, name: str) -> int:
        self.processes[name].send_signal(signal.SIGTERM)
        return self.processes[name].wait(timeout=30)

    def said(self) -> str:
        return "\n".join(f"-- {name}\n{lines.text[-2000:]}" for name, lines in self._lines.items())

    def finals(self) -> list[dict[str, Any]]:
        paths = sorted(self.metrics.glob("rank-*.final.json"))
        return [json.loads(path.read_text()) for path in paths]

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
