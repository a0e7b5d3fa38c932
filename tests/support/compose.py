"""A job in containers: ``docker compose`` on a real engine, watched through its bus."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.looking import view_when, warm
from tests.support.ports import free_port

from trainmover.bus.credentials import Credentials
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import JOBS_BUCKET
from trainmover.errors import BusError
from trainmover.subjects import EVENT_STREAM
from trainmover_console.demo.metrics import RunMetrics, read_run
from trainmover_console.view import JobView

ROOT = Path(__file__).parents[2]
METRICS = "/var/lib/trainmover/metrics"
SLOTS = range(4)
# A model that two cores step through four times over in some ten milliseconds.
UNPACED = "-m -- trainmover_executor.programs.gpt --steps 100000 --seed 5"
UNPACED += " --width 32 --layers 2 --context 32 --batch 2"
PROGRAM = UNPACED + " --pace 0.5"
"""It leaves room for others, and its steps can be done again in a fraction of the time."""


def why_no_engine() -> str | None:
    """Why nothing can be run in containers here; None when it can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    for command, lacking in (
        (("docker", "info"), "no Docker engine answers (is DOCKER_HOST right?)"),
        (("docker", "compose", "version"), "docker has no compose command (version 2 is needed)"),
    ):
        try:
            done = subprocess.run(command, capture_output=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            return lacking
        if done.returncode != 0:
            return lacking
    return None


class Stack:
    """One compose project, which is gone with its volumes after ``close``.

    Attributes:
        env: Environment of every command.
        files: Options that name compose files.
    """

    def __init__(self) -> None:
        self.files: tuple[str, ...] = ()
        self.project = f"tm-test-{uuid.uuid4().hex[:8]}"
        self.port = free_port()
        self.env = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "NATS_PORT": str(self.port),
            "TRAINMOVER_TAG": "test",
            # The torch that pip finds here: that of the lock brings gigabytes of CUDA.
            "EXECUTOR_LOCK": "deploy/executor.in",
            "TRAINMOVER_JOB": "gpt",
            "TRAINMOVER_PROGRAM": PROGRAM,
            # A busy test machine makes stragglers of its own.
            "TRAINMOVER_PLANNER_OPTIONS": "--automation=paused",
        }
        self._keys = Path(tempfile.mkdtemp(prefix="trainmover-keys-"))

    @property
    def url(self) -> str:
        """The bus, from this host."""
        return f"nats://127.0.0.1:{self.port}"

    def keys(self, role: str) -> Credentials:
        """What ``docker compose cp`` hands to a client outside of the containers."""
        folder = self._keys / role
        if not folder.exists():
            self.compose("cp", f"keys:/var/lib/trainmover/security/clients/{role}", str(folder))
        return Credentials.of_folder(folder)

    def bus(self, role: str = "ops") -> NatsBus:
        """A client of that role."""
        return NatsBus(
            self.url, name="test", credentials=self.keys(role), connect_timeout=30.0
        )  # it may have been restarted just now

    def readers(self) -> int:
        """How many clients read the facts of the job now."""
        return asyncio.run(self._readers())

    async def _readers(self) -> int:
        async with self.bus() as bus:
            return (await bus.client.jetstream().stream_info(EVENT_STREAM)).state.consumer_count

    def leader(self, service: str) -> str:
        """The container whose replica of a service leads.

        Its lease names the namespace of its process ids, of which each container has one.
        """
        namespace = asyncio.run(self._leader(service)).rpartition("/")[2]
        for container in self.compose("ps", "-q", service).split():
            seen = ("stat", "-L", "-c", "%i", "/proc/self/ns/pid")
            if self.run("docker", "exec", container, *seen).strip() == namespace:
                return container
        raise AssertionError(f"no container of {service} holds its lease")

    async def _leader(self, service: str) -> str:
        async with self.bus() as bus:
            entry = await bus.get(JOBS_BUCKET, f"gpt.{service}-lease")
        assert entry is not None
        pids: str = json.loads(entry.value)["pids"]
        return pids

    def run(self, *command: str, timeout_s: float = 120, check: bool = True) -> str:
        """Run a command with the project's environment; its standard output."""
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def compose(self, *arguments: str, timeout_s: float = 120, check: bool = True) -> str:
        """``docker compose ...`` in this project."""
        command = ("docker", "compose", *self.files, *arguments)
        return self.run(*command, timeout_s=timeout_s, check=check)

    def pause(self, service: str, *, tries: int = 10) -> None:
        """``docker compose pause``, again where the kernel did not freeze all processes in time.

        On a busy host the runtime gives up ("unable to freeze") and lets the container go on.
        """
        for attempt in range(1, tries + 1):
            self.compose("pause", service, check=attempt == tries)
            if self.compose("ps", "-q", "--status", "paused", service).strip():
                return

    def up(self, *, standbys: int) -> None:
        """Start what does not run; change nothing that does."""
        self.compose("up", "-d", "--no-recreate", "--scale", f"standby={standbys}", timeout_s=180)

    def revive(self, *, standbys: int) -> None:
        """Start services and machines that ended; the bus was set up before."""
        services = ("detector", "planner", *(f"node-{slot}" for slot in SLOTS), "standby")
        scale = ("--scale", f"standby={standbys}")
        self.compose("up", "-d", "--no-recreate", "--no-deps", *scale, *services, timeout_s=180)

    def container(self, service: str) -> str:
        """Id of a service's container, running or not."""
        return self.compose("ps", "-a", "-q", service).split()[0]

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's container."""
        found: list[dict[str, Any]] = json.loads(
            self.run("docker", "inspect", self.container(service))
        )
        return found[0]

    def until(
        self, reached: Callable[[JobView], bool], *, what: str, timeout_s: float = 180
    ) -> JobView:
        """The job's view once ``reached`` holds for it."""
        return asyncio.run(self._until(reached, what, timeout_s))

    async def _until(
        self, reached: Callable[[JobView], bool], what: str, timeout_s: float
    ) -> JobView:
        view = JobView(self.env["TRAINMOVER_JOB"])
        try:
            async with asyncio.timeout(timeout_s), self.bus() as bus:
                await view_when(bus, view, reached)
                return view
        except (TimeoutError, BusError) as error:
            raise AssertionError(
                f"not {what} in {timeout_s} s ({error!r}):\n{self.report(view)}"
            ) from error

    def until_warm(self, standbys: int, *, timeout_s: float = 240) -> JobView:
        """Have so many standbys that could take any slot at once."""
        return self.until(
            lambda view: warm(view, slots=len(SLOTS)) >= standbys,
            what=f"{standbys} warm standbys",
            timeout_s=timeout_s,
        )

    def report(self, view: JobView) -> str:
        """What a person needs who has to find out why a test failed."""
        state = json.dumps(view.as_data(), indent=1)
        logs = self.compose("logs", "--no-color", "--tail", "15", check=False)
        return f"{state}\n{self.compose('ps', '-a', check=False)}\n{logs}"

    def metrics(self, folder: Path) -> RunMetrics:
        """The loss lines of every rank up to now."""
        self.compose("cp", f"node-0:{METRICS}", str(folder))
        return read_run(folder)

    def close(self) -> None:
        shutil.rmtree(self._keys)
        self.compose("--profile", "*", "down", "-v", "--remove-orphans", "-t", "2", timeout_s=180)
