"""One run of the chaos campaign: a real job, one injection, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.faults import Injection
from tests.support.cluster import ClusterJob

from trainmover.bus.nats.bus import NatsBus
from trainmover.errors import BusError
from trainmover.events.executor import PlanCommitted
from trainmover.events.migration import MigrationCommitted
from trainmover.job.topology import Frozen
from trainmover.runtime.failpoints import VARIABLE

WORKLOADS = str(Path(__file__).parents[1] / "jobs" / "workloads.py")
STEPS = 60
PROGRAM = (WORKLOADS, "ddp", "--steps", str(STEPS), "--pace", "0.05")
SHAPE = ("--nnodes", "3:5")
HELD_AT = 3
PAUSE_S = 4.0

Expected = tuple[list[object], list[dict[int, str]]]
"""Final state and losses of every rank."""


class FactLog:
    """All facts of a job for as long as its bus lives."""

    def __init__(self, job: ClusterJob) -> None:
        self.facts: list[Frozen] = []
        self._job = job
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._until_over())

    async def _until_over(self) -> None:
        reading = asyncio.ensure_future(self._read())
        await self._over.wait()
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled() and not isinstance(reading.exception(), BusError | OSError):
            reading.result()

    async def _read(self) -> None:
        async with (
            NatsBus(self._job.runtime()["nats"], name="chaos") as bus,
            aclosing(bus.events(self._job.name)) as facts,
        ):
            async for delivery in facts:
                self.facts.append(delivery.payload.payload)


@dataclass
class Outcome:
    """How a run ended."""

    injection: Injection
    seconds: float = 0.0
    ended: list[str] = field(default_factory=list)
    problem: str = ""


def undisturbed(home: Path) -> Expected:
    """Final state and losses of the same program left alone."""
    with ClusterJob(home, "--nnodes", "1", "--nproc-per-node", "3", *PROGRAM) as job:
        assert job.finish() == 0, job.output
        return list(job.finals()), job.losses()


class HeldJob(ClusterJob):
    """A job whose ranks wait in a step until the test has what it needs, however long it takes."""

    def __init__(self, home: Path) -> None:
        self._gate = home / "gate"
        held = ("--hold-at", str(HELD_AT), "--gate", str(self._gate))
        super().__init__(home, *SHAPE, *PROGRAM, *held)

    def warm_up(self) -> None:
        """Wait until both standbys can fill any slot."""
        self.until(r"job\.formed")
        self.wait_until_ready(3, standbys=2)

    def go_on(self) -> None:
        """Open the gate."""
        self._gate.touch()


class TooLateError(Exception):
    """On a busy machine the job may be over before the migration gets to the point."""


def perform(one: Injection, home: Path, *, expected: Expected, tries: int = 3) -> Outcome:
    """Run one injection; the outcome names what did not hold, if anything.

    A run in which nothing was injected says nothing: it is done again, up to ``tries`` times.
    """
    for number in range(1, tries + 1):
        with contextlib.suppress(TooLateError):
            return _perform(one, home / str(number), expected=expected)
    return Outcome(one, problem=f"the job was over before {one.point}, {tries} times")


def _perform(one: Injection, home: Path, *, expected: Expected) -> Outcome:
    outcome = Outcome(one)
    started = time.monotonic()
    home.mkdir(parents=True)
    rule = {"point": one.point, "match": one.match, "when": str(home / "armed"), "do": "hold"}
    (home / "rules.json").write_text(json.dumps([{**rule, "path": str(home / "point")}]))
    os.environ[VARIABLE] = str(home / "rules.json")
    job = HeldJob(home)
    try:
        job.warm_up()
        with contextlib.closing(FactLog(job)) as log:
            _act(one, job, home)
            code = job.finish(timeout_s=150)
        assert code == 0, f"the job ended with {code}"
        _check(job, log, expected)
        outcome.ended = _endings(job)
    except AssertionError as error:
        outcome.problem = str(error)
        (home / "output.txt").write_text(job.output)
    finally:
        os.environ.pop(VARIABLE)
        with contextlib.suppress(FileNotFoundError):
            for pid in _machines(job):
                _signal(tree_of(pid), signal.SIGCONT)
        job.close()
    outcome.seconds = time.monotonic() - started
    return outcome


def _act(one: Injection, job: HeldJob, home: Path) -> None:
    (home / "armed").touch()
    if one.scene == "planned":
        asked = job.cli("migrate", "node-1", "--yes", "--no-wait")
        assert asked.returncode == 0, asked.stderr
    job.go_on()
    if one.scene == "recovery":
        _signal(tree_of(job.runtime()["processes"]["node-1"]), signal.SIGKILL)
    reached = home / "point.reached"
    deadline = time.monotonic() + 60
    while not reached.exists():
        assert time.monotonic() < deadline, f"nobody reached {one.point}:\n{job.output}"
        if job.process.poll() == 0:
            raise TooLateError
        assert job.process.poll() is None, f"ended before {one.point}:\n{job.output}"
        time.sleep(0.005)
    with _struck(one, job):
        (home / "point.go").touch()
        if one.fault == "pause":
            threading.Event().wait(PAUSE_S)


@contextlib.contextmanager
def _struck(one: Injection, job: ClusterJob) -> Iterator[None]:
    name = _name(one, job)
    processes = job.runtime()["processes"]
    pids = tree_of(processes[name]) if name.startswith("worker") else [processes[name]]
    _signal(pids, signal.SIGKILL if one.fault == "kill" else signal.SIGSTOP)
    yield
    if one.fault == "pause":
        _signal(pids, signal.SIGCONT)


def _name(one: Injection, job: ClusterJob) -> str:
    if one.victim == "joiner":
        deadline = time.monotonic() + 10  # the rank may be faster than the line that names it
        while not (named := re.findall(r"migration\.preparing .*-> (node-\d+)", job.output)):
            assert time.monotonic() < deadline, f"no joiner was named:\n{job.output}"
            time.sleep(0.01)
        return str(named[-1])
    names = {"leaver": "node-1", "stayer": "node-0", "other": "node-2"}
    return names.get(one.victim, one.victim)


def _check(job: ClusterJob, log: FactLog, expected: Expected) -> None:
    finals, losses = expected
    assert job.finals() == finals, "the final state differs (INV-SAME-BITS)"
    for disturbed, straight in zip(job.losses(), losses, strict=True):
        missing = straight.keys() - disturbed.keys()
        # Committed by its peers, killed before it could write the line: once for each machine.
        assert len(missing) <= 2, f"steps {sorted(missing)} were not logged (INV-NO-LOST-STEP)"
        kept = {step: loss for step, loss in straight.items() if step not in missing}
        assert disturbed == kept, "the loss curve differs (INV-SAME-BITS)"
    owners: dict[tuple[int, int], set[str]] = {}
    for fact in log.facts:
        if isinstance(fact, PlanCommitted):
            owners.setdefault((fact.rank, fact.epoch), set()).add(fact.machine)
    twice = {key: names for key, names in owners.items() if len(names) > 1}
    assert not twice, f"two owners of (rank, epoch): {twice} (INV-ONE-OWNER)"
    epochs = [fact.epoch for fact in log.facts if isinstance(fact, MigrationCommitted)]
    assert epochs == sorted(set(epochs)), f"epochs {epochs} (INV-EPOCH-MONOTONE)"


def _endings(job: ClusterJob) -> list[str]:
    return re.findall(r"migration\.(committed|aborted|failed|rejected) ", job.output)


def _machines(job: ClusterJob) -> list[int]:
    processes = job.runtime()["processes"]
    return [pid for name, pid in processes.items() if name.startswith("worker")]


def _signal(pids: list[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def tree_of(pid: int) -> list[int]:
    """A process and all its descendants, itself first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(
                    int(entry.name)
                )
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found
