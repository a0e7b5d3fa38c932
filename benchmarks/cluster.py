"""A job under ``trainmover run``, steered and observed over its bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import MigrateRequest
from trainmover.events.envelope import Envelope
from trainmover.job.topology import Frozen
from trainmover.protocol.requests import QuarantineRequest, UnquarantineRequest
from trainmover.runtime import procfs
from trainmover_console.view import JobView, MigrationView
from trainmover_launcher import registry

JOB = "bench"


def memory(pid: int) -> dict[str, int]:
    """kB in the lines of /proc/PID/status that end so: VmHWM (the peak), VmRSS, ..."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}


def forget_peak(pid: int) -> None:
    """Let VmHWM begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Cluster:
    """Start it as an asynchronous context; what happens is folded into ``view``."""

    def __init__(
        self,
        *,
        nnodes: str,
        program: list[str],
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.view = JobView(JOB)
        self._nnodes = nnodes
        self._program = program
        self._options = options
        self._home = tempfile.TemporaryDirectory()
        self._environment = {**(environment or {}), "TRAINMOVER_HOME": self._home.name}
        self._added: dict[str, subprocess.Popen[bytes]] = {}
        self._changed = asyncio.Condition()
        self.facts: list[tuple[float, Frozen]] = []
        """(monotonic second of arrival, fact) of everything that was said."""
        self.told: list[Envelope] = []
        """The same facts with their contexts; the bus does not keep all of them."""

    async def __aenter__(self) -> Self:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # not stdout
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the job ends, too
        command = [sys.executable, "-m", "trainmover_console.cli", "run", "--job", JOB]
        self._process = subprocess.Popen(  # noqa: ASYNC220 - started once, nothing else runs yet
            [*command, "--nnodes", self._nnodes, *self._options, *self._program],
            env={**os.environ, **self._environment},
            stdout=sys.stderr,
            start_new_session=True,
        )
        try:
            self._bus = NatsBus((await self._record()).nats, name="benchmark")
            await self._bus.__aenter__()
        except BaseException:
            self._end()
            raise
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reading.cancel()
        await self._bus.__aexit__(kind, error, traceback)
        self._end()

    def _end(self) -> None:
        for process in self._added.values():
            process.terminate()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for process in self._added.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._home.cleanup()

    async def _record(self) -> registry.JobRecord:
        path = Path(self._home.name) / "jobs" / f"{JOB}.json"
        deadline = time.monotonic() + 60
        while True:
            if path.exists():
                record = registry.JobRecord.model_validate_json(path.read_text())
                if record.processes:
                    return record
            assert time.monotonic() < deadline, "the cluster did not start"
            await asyncio.sleep(0.1)

    async def _read(self) -> None:
        async with aclosing(self._bus.events(JOB)) as facts:
            async for delivery in facts:
                async with self._changed:
                    self.facts.append((time.monotonic(), delivery.payload.payload))
                    self.told.append(delivery.payload)
                    self.view.apply(delivery.payload)
                    self._changed.notify_all()

    async def until(self, reached: Callable[[JobView], Any], *, limit_s: float = 600) -> Any:
        """Wait until ``reached`` returns something true, and return it."""
        async with asyncio.timeout(limit_s), self._changed:
            while not (found := reached(self.view)):
                await self._changed.wait()
            return found

    async def warm(self, *, slot: int) -> None:
        """Wait until a standby is warm for ``slot``."""
        await self.until(
            lambda view: any(
                one.role == "standby" and slot in one.ready_slots for one in view.machines.values()
            )
        )

    async def is_there(self, *, slot: int) -> None:
        """Wait until a standby that can only draw what was used has done so for ``slot``."""
        await self.until(
            lambda view: any(
                one.rank == slot and one.drawing_s and not one.behind for one in view.costs
            )
        )

    async def all_warm(self, *, standbys: int) -> list[int]:
        """Wait until nobody warms up any more; the slots that a standby is warm for.

        Args:
            standbys: So many there are.
        """

        def warm(view: JobView) -> list[int]:
            slots = view.membership.layout.slots if view.membership else 1
            waiting = [one for one in view.machines.values() if one.role == "standby"]
            done = [len(one.ready_slots) >= (one.warm_limit or slots) for one in waiting]
            ready = sorted({slot for one in waiting for slot in one.ready_slots})
            return ready if len(done) >= standbys and all(done) else []

        found: list[int] = await self.until(warm)
        return found

    def holder(self, slot: int) -> str:
        """The machine that fills ``slot`` now."""
        assert self.view.membership is not None
        return self.view.membership.members[slot].machine

    async def steps(self, count: int) -> None:
        """Wait for so many more steps."""
        goal = self.view.step + count
        await self.until(lambda view: view.step >= goal)

    async def migrate(self, slot: int) -> MigrationView:
        """Move ``slot`` by plan."""
        before = set(self.view.migrations)
        request = MigrateRequest(machine=self.holder(slot), reason="benchmark")
        reply = json.loads(await self._bus.request(JOB, "migrate", request))
        assert reply.get("migration"), reply
        return await self._next_committed(before)

    async def repaired(self, machine: str) -> None:
        """An operator looked at a machine that holds no slot, and lets it back in."""
        about = {"machine": machine, "reason": "benchmark", "requested_by": "benchmark"}
        for verb, request in (
            ("quarantine", QuarantineRequest(**about)),
            ("unquarantine", UnquarantineRequest(**about)),
        ):
            reply = json.loads(await self._bus.request(JOB, verb, request))
            assert reply["ok"], reply

    async def crash(self, slot: int) -> MigrationView:
        """Kill every process of the machine that fills ``slot``."""
        before = set(self.view.migrations)
        os.kill(await self._agent(self.holder(slot)), signal.SIGKILL)
        return await self._next_committed(before)

    async def finished(self, *, limit_s: float = 600) -> int:
        """Wait until the job ends by itself; its exit code."""
        return await asyncio.to_thread(self._process.wait, limit_s)

    async def add(self) -> str:
        """Start one more machine, which becomes a standby; its name."""
        name = f"added-{len(self._added)}"
        record = await self._record()
        command = [sys.executable, "-m", "trainmover_executor.agent", "--job", JOB]
        command += ["--nats", record.nats, "--machine", name, "--nnodes", self._nnodes]
        command += ["--host", "127.0.0.1", "--log-dir", record.log_dir]
        module = self._program[:1] == ["-m"]
        command += ["-m", "--", *self._program[1:]] if module else ["--", *self._program]
        self._added[name] = subprocess.Popen(  # noqa: ASYNC220 - it is only started here
            command, env={**os.environ, **self._environment}, stdout=sys.stderr
        )
        return name

    async def _agent(self, machine: str) -> int:
        """Process id of a machine's agent."""
        if (added := self._added.get(machine)) is not None:
            return added.pid
        return (await self._record()).processes[machine]

    async def worker(self, slot: int) -> int:
        """Process id of the largest process of the machine that fills ``slot``: its rank."""
        agent = await self._agent(self.holder(slot))
        below = procfs.descendants(agent, procfs.snapshot())
        return max((stat.pid for _, stat in below), key=lambda pid: memory(pid)["VmRSS"])

    async def _next_committed(self, before: set[str]) -> MigrationView:
        def over(view: JobView) -> MigrationView | None:
            for id, move in view.migrations.items():
                if id in before:
                    continue
                assert move.state not in {"aborted", "failed", "rejected"}, (id, move.reason)
                stayers = view.membership.layout.slots - 1 if view.membership else 1
                if move.state == "committed" and len(move.pauses_s) >= stayers:
                    return move
            return None

        found: MigrationView = await self.until(over)
        return found
