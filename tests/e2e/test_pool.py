"""Two jobs share a pool: both lose a machine in the same second, and the pool its leader."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import WORKLOADS
from tests.support.cluster import COMMAND, ClusterJob
from tests.support.lines import Lines

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]

JOBS = """
jobs:
  {first}:
    wanted: 0
    agent: [{options}]
    env: {{TRAINMOVER_LINK_SECRET_FILE: {first_secret}}}
  {second}:
    wanted: {wanted}
    agent: [{second_options}]
    env: {{TRAINMOVER_LINK_SECRET_FILE: {second_secret}}}
settle: 2s
"""


class Service:
    """A process of the pool, with its output as it comes."""

    def __init__(self, home: Path, what: str, *arguments: str) -> None:
        env = {**os.environ, "TRAINMOVER_HOME": str(home), "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines = Lines(self.process.stdout, what=what)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=10)
        self.lines.end()


class Pool:
    """Leaders and machines of a pool on one bus."""

    def __init__(self, home: Path, url: str, stack: ExitStack) -> None:
        self.home, self.url, self._stack = home, url, stack
        self.file = home / "pool.yaml"
        self.leaders: list[Service] = []
        self.machines: list[Service] = []

    def _start(self, what: str, *arguments: str) -> Service:
        common = ("--pool", "spares", "--nats", self.url, "--jobs", str(self.file))
        made = Service(self.home, what, *arguments, *common)
        self._stack.callback(made.close)
        return made

    def lead(self) -> None:
        self.leaders.append(self._start("leader", "pool", "serve", "--lease", "1"))

    def join(self) -> None:
        name = f"spare-{len(self.machines)}"
        self.machines.append(self._start(name, "agent", "--machine", name, "--host", "127.0.0.1"))

    def status(self) -> dict[str, Any]:
        done = subprocess.run(
            [*COMMAND, "pool", "status", "--pool", "spares", "--nats", self.url, "-o", "json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def until(self, holds: Callable[[dict[str, Any]], bool], *, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        told: dict[str, Any] = {}
        while not (told and holds(told)):
            assert time.monotonic() < deadline, self.words(told)
            told = self.status()

    def words(self, told: dict[str, Any]) -> str:
        parts = [json.dumps(told, indent=1)]
        parts += [one.lines.text for one in (*self.leaders, *self.machines)]
        return "\n".join(parts)


@contextmanager
def pool_on(home: Path, url: str) -> Iterator[Pool]:
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        yield Pool(home, url, stack)


def listed(*arguments: str) -> str:
    return ", ".join(json.dumps(one) for one in arguments)


def test_two_jobs_lose_a_machine_and_the_pool_its_leader(
    nats_url: str, undisturbed: Callable[..., ClusterJob], tmp_path: Path
) -> None:
    program = (WORKLOADS, "ddp", "--steps", "60")
    shape = ("--slots", "2", "--standbys", "0")

    def start(name: str) -> tuple[ClusterJob, Path, tuple[str, ...]]:
        gate = tmp_path / f"gate-{name}"
        held = (*program, "--hold-at", "20", "--gate", str(gate))
        job = ClusterJob(tmp_path / name, "--nats", nats_url, *shape, *held, name=name)
        options = (*shape, "--metrics-dir", str(job.metrics), "--", *held)
        return job, gate, options

    (one, first, of_one), (two, second, of_two) = start("one"), start("two")
    with one, two, pool_on(tmp_path / "pool", nats_url) as pool:
        pool.file.write_text(
            JOBS.format(
                first="one",
                second="two",
                wanted=0,
                options=listed(*of_one),
                second_options=listed(*of_two),
                first_secret=one.home / "jobs/one.secret",
                second_secret=two.home / "jobs/two.secret",
            )
        )
        pool.lead()
        pool.join()
        pool.join()
        for job in (one, two):
            job.until(r"job\.formed")
            job.wait_until_trains(2)
        pool.until(lambda told: [m["phase"] for m in told["machines"]] == ["idle", "idle"])
        pool.lead()  # a replica
        one.kill("node-1")
        two.kill("node-1")
        os.kill(pool.leaders[0].process.pid, signal.SIGKILL)
        for gate in (first, second):
            gate.touch()
        took = [
            job.until(r"migration\.committed .*node-1 -> spare-\d in slot 1") for job in (one, two)
        ]
        assert {re.findall(r"spare-\d", line)[0] for line in took} == {"spare-0", "spare-1"}
        for job in (one, two):
            assert job.finish() == 0, job.output
            assert job.output.count("migration.committed") == 1
        pool.until(lambda told: [m["phase"] for m in told["machines"]] == ["idle", "idle"])
        expected = undisturbed(2, *program)
        assert one.finals() == two.finals() == expected.finals()
