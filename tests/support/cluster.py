"""The whole system as a user starts it: ``trainmover run`` in one process, commands in others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from tests.support.lines import Lines

from trainmover.bus.credentials import Credentials
from trainmover.bus.nats.bus import NatsBus
from trainmover.events.executor import JobLayoutKnown, StateFollowed
from trainmover.events.machine import MachineReady, MachineRegistered

COMMAND = [sys.executable, "-m", "trainmover_console.cli"]


class ClusterJob:
    """A job under ``trainmover run``, with its output as it comes."""

    def __init__(self, home: Path, *arguments: str, name: str = "job") -> None:
        self.name = name
        self.home = home
        self.metrics = home / "metrics"
        self._env = {**os.environ, "TRAINMOVER_HOME": str(home), "NO_COLOR": "1"}
        head = ["run", "--job", name, "--metrics", str(self.metrics)]
        self.process = subprocess.Popen(
            [*COMMAND, *head, *arguments],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines = Lines(self.process.stdout, what=f"job {name}")

    @property
    def output(self) -> str:
        """What it printed so far."""
        return self._lines.text

    def until(self, pattern: str, *, timeout_s: float = 120) -> str:
        """Wait for a line that matches."""
        return self._lines.until(pattern, timeout_s=timeout_s)

    def runtime(self) -> dict[str, Any]:
        """The runtime file that the launcher keeps for other terminals."""
        record: dict[str, Any] = json.loads((self.home / "jobs" / f"{self.name}.json").read_text())
        return record

    def bus(self) -> NatsBus:
        """A client that may look."""
        record = self.runtime()
        clients = record["clients"]
        ops = Credentials.of_folder(Path(clients) / "ops") if clients else None
        return NatsBus(record["nats"], name="test", credentials=ops)

    def kill(self, *names: str) -> None:
        """``kill -9`` the named processes ("detector", "node-2", ...)."""
        processes = self.runtime()["processes"]
        for name in names:
            os.kill(processes[name], signal.SIGKILL)

    def cli(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command from a second terminal."""
        return subprocess.run(
            [*COMMAND, *arguments, "--job", self.name],
            env={**self._env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def wait_until_ready(
        self, slots: int, *, standbys: int = 1, generation: int = 0, timeout_s: float = 120
    ) -> None:
        """Wait until so many standbys are warm for every slot.

        Those count whose agent had at least ``generation`` incarnations before.
        """
        asyncio.run(self._until_ready(set(range(slots)), standbys, generation, timeout_s))

    async def _until_ready(
        self, wanted: set[int], standbys: int, generation: int, timeout_s: float
    ) -> None:
        ready: dict[tuple[str, int], set[int]] = {}
        first: dict[str, int] = {}
        async with (
            asyncio.timeout(timeout_s),
            self.bus() as bus,
            aclosing(bus.events(self.name, entity="machine")) as facts,
        ):
            async for delivery in facts:
                fact = delivery.payload.payload
                if isinstance(fact, MachineRegistered):
                    first.setdefault(fact.machine.name, fact.machine.generation)
                if not isinstance(fact, MachineReady):
                    continue
                if fact.generation - first[fact.machine] < generation:
                    continue
                slots = ready.setdefault((fact.machine, fact.generation), set())
                slots.add(fact.slot)
                if [*ready.values()].count(wanted) == standbys:
                    return

    def wait_until_trains(self, ranks: int, *, timeout_s: float = 120) -> None:
        """Wait until so many ranks said what they hold: from then on each can be replaced."""
        asyncio.run(self._until_trains(ranks, timeout_s))

    async def _until_trains(self, ranks: int, timeout_s: float) -> None:
        known: set[int] = set()
        async with (
            asyncio.timeout(timeout_s),
            self.bus() as bus,
            aclosing(bus.events(self.name, entity="worker", fact="layout")) as facts,
        ):
            async for delivery in facts:
                assert isinstance(delivery.payload.payload, JobLayoutKnown)
                known.add(delivery.payload.payload.rank)
                if len(known) == ranks:
                    return

    def wait_until_followed(self, rank: int, *, epoch: int, timeout_s: float = 60) -> None:
        """Wait until a neighbour keeps the state of ``rank`` current, at that epoch or later."""
        asyncio.run(self._until_followed(rank, epoch, timeout_s))

    async def _until_followed(self, rank: int, epoch: int, timeout_s: float) -> None:
        async with (
            asyncio.timeout(timeout_s),
            NatsBus(self.runtime()["nats"], name="test") as bus,
            aclosing(bus.events(self.name, entity="worker", fact="followed")) as facts,
        ):
            async for delivery in facts:
                fact = delivery.payload.payload
                assert isinstance(fact, StateFollowed)
                if fact.rank == rank and fact.epoch >= epoch:
                    return

    def finish(self, *, timeout_s: float = 90) -> int:
        """Wait for the end; the exit code."""
        try:
            code = self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end in {timeout_s} s:\n{self.output}") from None
        self._lines.end()
        return code

    def finals(self) -> list[dict[str, Any]]:
        """The final record of every rank."""
        paths = sorted(self.metrics.glob("rank-*.final.json"))
        return [json.loads(path.read_text()) for path in paths]

    def losses(self) -> list[dict[int, str]]:
        """Loss by step, bit for bit, of every rank."""
        every = []
        for path in sorted(self.metrics.glob("rank-*.jsonl")):
            records = [json.loads(line) for line in path.read_text().splitlines()]
            by_step = {record["step"]: record["loss_hex"] for record in records}
            assert len(by_step) == len(records), f"{path.name} has a step twice"
            every.append(by_step)
        return every

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(timeout=10)
        self._lines.end()

    def __enter__(self) -> ClusterJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
