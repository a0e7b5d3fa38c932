"""What grows with the age of a job: after many migrations, machines that came and went, incidents.

    python -m benchmarks.growth --json

Each row is one thing that is counted, early and late, and its growth for 1,000 migrations (or link
rebuilds). The cores of planner and detector and the planner's outbox are real, the machines only
speak; the links are real sockets of ranks in one process. ``log lines`` are said, not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, Final

import structlog

from benchmarks.cluster import memory
from benchmarks.detection_simulated import detectors
from benchmarks.planner import apart
from benchmarks.speakers import Cast, Speaker
from trainmover.bus.protocol import Entry
from trainmover.commands import MigrateRequest
from trainmover.detection.guard import Guarded
from trainmover.events import machine
from trainmover.events.migration import MigrationReady
from trainmover.job.topology import Frozen
from trainmover.telemetry.records import decode_batch
from trainmover.tracing import observe
from trainmover_detector.core import DetectorCore
from trainmover_planner import core
from trainmover_planner.outbox import Outbox
from trainmover_planner.state.effects import Fact, PublishFact, Reply, Request, SendCommand, Tick

JOB: Final = "growth"
SLOTS: Final = 3
SPARE: Final = 2
MIGRATIONS: Final = 10_000
REBUILDS: Final = 2_000
_STEP_S: Final = 0.05
_LONGEST_S: Final = 60.0
_DEPTH: Final = 4


class Nowhere:
    """A bus that takes everything; it remembers which keys there would be."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str], int] = {}

    async def publish(self, event: Any) -> None:
        """Gone."""

    async def send_command(self, job: str, name: str, command: Any, *, id: str) -> None:
        """Gone."""

    async def put(self, bucket: str, key: str, value: bytes, *, revision: int | None) -> Entry:
        """Only the key is kept."""
        del value, revision
        self.keys[bucket, key] = number = self.keys.get((bucket, key), 0) + 1
        return Entry(key, b"", number)

    async def get(self, bucket: str, key: str) -> Entry | None:
        """What was put."""
        number = self.keys.get((bucket, key))
        return None if number is None else Entry(key, b"", number)


class Mute(Speaker):
    """A machine whose facts are collected."""

    def __init__(self, cast: Cast, name: str, said: deque[tuple[str, Frozen]]) -> None:
        super().__init__(cast, name)
        self._heap = said

    def say(self, fact: Frozen) -> None:
        """Queue a fact."""
        self._heap.append((f"/machine/{self.name}", fact))


class Job:
    """Planner and detector with machines, in virtual time."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.state = core.initial(JOB)
        self.detector = DetectorCore([Guarded(n, one) for n, one in detectors().items()])
        self.machines: dict[str, Mute] = {}
        self.now_s = 1_000.0
        self.count = 0
        self._said: deque[tuple[str, Frozen]] = deque()
        self._ids = 0
        self._cast = Cast(JOB, "", (SLOTS, SLOTS + SPARE), (), ranks=1)
        for _ in range(SLOTS + SPARE):
            self.add()

    def add(self) -> None:
        """A machine of a new name."""
        name = f"node-{self.count}"
        self.count += 1
        self.machines[name] = Mute(self._cast, name, self._said)
        self.machines[name].register()

    @property
    def members(self) -> list[str]:
        """Who has a slot."""
        membership = self.state.membership
        return [] if membership is None else [one.machine for one in membership.members]

    def run(self, until: Any) -> None:
        """Let time pass until something is so."""
        ends_s = self.now_s + _LONGEST_S
        while not until():
            if self.now_s > ends_s:
                raise RuntimeError(f"nothing happens: {self.state.phase}, {self.state.reason}")
            self.now_s += _STEP_S
            self._beat()
            self._settle()

    def _beat(self) -> None:
        for one in self.machines.values():
            self._collect(
                self.detector.on_batch(decode_batch(one.batch(stepped=False)), self.now_s)
            )
        self._collect(self.detector.tick(self.now_s))
        self._plan(Tick())

    def _collect(self, facts: list[Frozen]) -> None:
        self._said.extend(("/detector", fact) for fact in facts)

    def _settle(self) -> None:
        while self._said:
            source, fact = self._said.popleft()
            self._ids += 1
            if source != "/planner":
                self._plan(Fact(fact, source, str(self._ids)))
            if source != "/detector":
                self._collect(self.detector.on_fact(fact, self.now_s))
            if isinstance(fact, MigrationReady):
                for one in self.machines.values():
                    one.ready(fact.migration)

    def _plan(self, event: Any) -> None:
        self.state, commands = core.step(self.state, event, self.now_s)
        self.outbox.carry_out(commands)
        for command in commands:
            if isinstance(command, PublishFact):
                self._said.append(("/planner", command.payload))
            elif isinstance(command, SendCommand):
                one = self.machines.get(command.machine)
                if one is not None and one.take(command.command):
                    del self.machines[one.name]
            elif isinstance(command, Reply) and not getattr(command.body, "ok", True):
                raise RuntimeError(str(command.body))

    def settled(self) -> bool:
        """Whether nothing is under way, and every standby is warm."""
        state = self.state
        warm = [host for host in state.inventory.hosts.values() if host.ready]
        return state.membership is not None and not state.open and len(warm) >= SPARE

    def migrate(self, number: int) -> None:
        """Move a machine by plan, or let one crash; one comes for each that went."""
        before, name = self.state.sequence, self.members[number % SLOTS]
        if number % 2:
            wish = MigrateRequest(machine=name, reason="growth").model_dump_json().encode()
            self._plan(Request(f"r-{number}", "migrate", wish, {}))
        else:
            gone = self.machines.pop(name)
            exited = machine.WorkerExited(
                machine=name,
                generation=gone.generation,
                rank=gone.ranks[0],
                epoch=self.state.issued,
                exit_code=None,
                signal=9,
            )
            self._said.append((f"/machine/{name}", exited))
            self.add()
        self.run(lambda: self.state.sequence > before and self.settled())


def sizes(one: object, name: str, *, depth: int = _DEPTH) -> Iterator[tuple[str, int]]:
    """How many entries each container has in an object of ours and in those that it holds."""
    for field, value in _fields(one):
        path = f"{name}.{field.lstrip('_')}"
        if isinstance(value, Mapping | set | frozenset | list | deque | tuple):
            yield path, len(value)
            if isinstance(value, list | tuple) and len(value) < 16 and depth:
                for each in value:
                    yield from sizes(each, f"{path}[{getattr(each, 'name', '')}]", depth=depth - 1)
        elif type(value).__module__.startswith("trainmover") and depth:
            yield from sizes(value, path, depth=depth - 1)
        elif isinstance(value, Sized) and type(value).__module__.startswith("asyncio"):
            yield path, len(value)


def _fields(one: object) -> list[tuple[str, Any]]:
    if not type(one).__module__.startswith("trainmover"):
        return []
    slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    named = {name: getattr(one, name) for name in slots if hasattr(one, name)}
    return [*(named | getattr(one, "__dict__", {})).items()]


def process() -> dict[str, int]:
    """What the process itself has."""
    gc.collect()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "memory kB": memory(os.getpid())["VmRSS"],
        "objects": len(gc.get_objects()),
    }


class _Lines(io.StringIO):
    """Counts lines, keeps none."""

    count = 0

    def write(self, text: str) -> int:
        self.count += text.count("\n")
        return len(text)


async def _migrations(count: int) -> list[dict[str, Any]]:
    lines, bus = _Lines(), Nowhere()
    observe.configure(service="growth", level="info", format="json", stream=lines)
    async with asyncio.TaskGroup() as group:
        outbox = Outbox(bus, JOB, group, status=Frozen)  # type: ignore[arg-type]
        job = Job(outbox)
        job.run(job.settled)
        early = max(count // 10, 1)
        counts = []
        for number in range(count):
            job.migrate(number)
            for _ in range(50):
                await asyncio.sleep(0)
            if number + 1 in (early, count):
                found = dict(sizes(job.state, "planner")) | dict(sizes(job.detector, "detector"))
                found |= dict(sizes(outbox, "outbox"))
                found |= {"tasks": len(asyncio.all_tasks()), "log lines": lines.count}
                for bucket, _ in bus.keys:
                    found[f"keys of {bucket}"] = found.get(f"keys of {bucket}", 0) + 1
                counts.append(found | process())
                print(number + 1, round(job.now_s), file=sys.stderr, flush=True)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    return rows("migrations", *counts, thousands=(count - early) / 1000)


def migrations(count: int) -> list[dict[str, Any]]:
    """Rows of the cores and the outbox."""
    return asyncio.run(_migrations(count))


def rebuilds(count: int) -> list[dict[str, Any]]:
    """Rows of links that are built again and again."""
    import torch  # noqa: PLC0415 - only this process needs it

    from benchmarks.fabric import Fabric  # noqa: PLC0415
    from benchmarks.rebuild import full_rebuild, phase_two  # noqa: PLC0415

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    fabric = Fabric(4)
    counts = []
    early = max(count // 10, 1)
    for number in range(count):
        if number % 2:
            full_rebuild(fabric)
        else:
            phase_two(fabric)
        if number + 1 in (early, count):
            found = dict(sizes(fabric.processes[0].table, "links"))
            counts.append(found | process())
            print(number + 1, file=sys.stderr, flush=True)
    fabric.close()
    return rows("link rebuilds", *counts, thousands=(count - early) / 1000)


def rows(
    of: str, before: Mapping[str, int], after: Mapping[str, int], *, thousands: float
) -> list[dict[str, Any]]:
    """A row for each thing that is counted."""
    return [
        {
            "what": f"{of}: {name}",
            "before": before.get(name, 0),
            "after": late,
            "per_1000": round((late - before.get(name, 0)) / thousands, 2),
        }
        for name, late in after.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--migrations", type=int, default=MIGRATIONS)
    parser.add_argument("--rebuilds", type=int, default=REBUILDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    if options.migrations:
        found += apart(migrations, options.migrations)
    if options.rebuilds:
        found += apart(rebuilds, options.rebuilds)
    print(json.dumps({"rows": found}, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
