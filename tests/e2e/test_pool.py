"""Two jobs share a pool: both lose a machine in the same second, and the pool its leader."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import WORKLOADS
from tests.support.cluster import COMMAND, ClusterJob
from tests.support.lines import Lines

from trainmover.bus.credentials import Credentials
from trainmover.security.folder import Setup, client_folder, write
from trainmover.security.roles import Role, User
from trainmover.testing import running_server

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


Key = Mapping[str, str]
"""Variables that say who a process is on a secured bus; none on another."""


def nobody(_role: Role, _which: str) -> Key:
    return {}


class Service:
    """A process of the pool, with its output as it comes."""

    def __init__(self, home: Path, what: str, key: Key, *arguments: str) -> None:
        env = {**os.environ, "TRAINMOVER_HOME": str(home), "NO_COLOR": "1", **key}
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

    def __init__(
        self, home: Path, url: str, stack: ExitStack, key_of: Callable[[Role, str], Key]
    ) -> None:
        self.home, self.url, self._stack, self._key_of = home, url, stack, key_of
        self.file = home / "pool.yaml"
        self.leaders: list[Service] = []
        self.machines: list[Service] = []

    def _start(self, what: str, key: Key, *arguments: str) -> Service:
        common = ("--pool", "spares", "--nats", self.url, "--jobs", str(self.file))
        made = Service(self.home, what, key, *arguments, *common)
        self._stack.callback(made.close)
        return made

    def lead(self) -> None:
        key = self._key_of(Role.POOL, "spares")
        self.leaders.append(self._start("leader", key, "pool", "serve", "--lease", "1"))

    def join(self) -> None:
        name = f"spare-{len(self.machines)}"
        key = self._key_of(Role.MACHINE, name)
        arguments = ("agent", "--machine", name, "--host", "127.0.0.1")
        self.machines.append(self._start(name, key, *arguments))

    def status(self) -> dict[str, Any]:
        done = subprocess.run(
            [*COMMAND, "pool", "status", "--pool", "spares", "--nats", self.url, "-o", "json"],
            env={**os.environ, **self._key_of(Role.OPS, "")},
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
def pool_on(home: Path, url: str, key_of: Callable[[Role, str], Key] = nobody) -> Iterator[Pool]:
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        yield Pool(home, url, stack, key_of)


def listed(*arguments: str) -> str:
    return ", ".join(json.dumps(one) for one in arguments)


@pytest.mark.soak  # the normal run does so without ranks, in tests/simulation
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


def test_on_a_secured_bus_the_pools_machine_takes_a_slot(
    undisturbed: Callable[..., ClusterJob], tmp_path: Path
) -> None:
    """Everybody has its own key: two jobs, the leader of the pool, and a machine of it."""
    security, program = tmp_path / "security", (WORKLOADS, "ddp", "--steps", "60")
    names, own = ("one", "two"), ("node-0", "node-1")
    write(security, Setup(jobs=names, machines=own, pools={"spares": ("spare-0",)}))

    def key_of(role: Role, which: str) -> Key:
        return Credentials.of_folder(client_folder(security, User(role, which))).environment()

    shape = ("--slots", "2", "--standbys", "0")
    gate = tmp_path / "gate"
    held = (*program, "--hold-at", "20", "--gate", str(gate))
    config = (security / "server" / "auth.conf").read_text()
    with ExitStack() as stack:
        url = stack.enter_context(running_server(extra_config=config)).url
        bus = ("--nats", url, "--security", str(security))
        one, two = (
            stack.enter_context(ClusterJob(tmp_path / name, *bus, *shape, *held, name=name))
            for name in names
        )
        pool = stack.enter_context(pool_on(tmp_path / "pool", url, key_of))
        options = [
            listed(*shape, "--metrics-dir", str(job.metrics), "--", *held) for job in (one, two)
        ]
        pool.file.write_text(
            JOBS.format(
                first="one",
                second="two",
                wanted=0,
                options=options[0],
                second_options=options[1],
                first_secret=one.home / "jobs/one.secret",
                second_secret=two.home / "jobs/two.secret",
            )
        )
        pool.lead()
        pool.join()
        for job in (one, two):
            job.until(r"job\.formed")
            job.wait_until_trains(2)
        pool.until(lambda told: [m["phase"] for m in told["machines"]] == ["idle"])
        two.kill("node-1")
        gate.touch()
        two.until(r"migration\.committed .*node-1 -> spare-0 in slot 1")
        for job in (one, two):
            assert job.finish() == 0, job.output
        assert "spare-0" in two.output
        assert "migration.committed" not in one.output
        expected = undisturbed(2, *program)
        assert one.finals() == two.finals() == expected.finals()
        logs = [each.lines.text for each in (*pool.leaders, *pool.machines)]
    assert not [line for log in logs for line in log.splitlines() if "may not" in line]
