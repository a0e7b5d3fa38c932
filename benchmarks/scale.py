"""What planner, detector and bus take for a large job, and how late their decisions are.

    python -m benchmarks.scale --json --ranks 1024 8192  # the latter wants more than two cores

The three are real processes. The machines, of 8 ranks each, only speak (``benchmarks.speakers``):
registration, progress once a second, telemetry, and whatever commands call for. Some are moved and
some killed. A decision is late by the time between two messages as the bus stored them, both by the
bus's clock. The machines have a lower priority (nice 2), for they are many and have few cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nats.aio.msg import Msg

from benchmarks.cluster import forget_peak, memory
from benchmarks.crowd import CONTROL, speak, split
from benchmarks.lateness import Stored, decisions
from benchmarks.speakers import RANKS, WARM, Cast
from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import MigrateRequest
from trainmover.tracing import observe

JOB: Final = "scale"
SIZES: Final = (1_024, 8_192)
SPARE: Final = 4
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LIMIT_S: Final = 300.0
_CALM_S: Final = 5.0


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass
class Services:
    """Planner, detector and bus, and what they took in each part of the run.

    Attributes:
        pids: By name.
        taken: Processor seconds a second, by part of the run and service.
    """

    pids: Mapping[str, int]
    taken: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextlib.contextmanager
    def measured(self, part: str) -> Iterator[None]:
        """Count what they take meanwhile."""
        began_s = time.monotonic()
        before = {name: cpu_s(pid) for name, pid in self.pids.items()}
        yield
        took_s = time.monotonic() - began_s
        self.taken[part] = {
            name: round((cpu_s(pid) - before[name]) / took_s, 3) for name, pid in self.pids.items()
        } | {"seconds": round(took_s, 2)}

    def peaks(self) -> dict[str, int]:
        """Largest resident memory of each, bytes."""
        return {name: 1024 * memory(pid)["VmHWM"] for name, pid in self.pids.items()}


@contextlib.contextmanager
def services(folder: Path) -> Iterator[tuple[str, Services]]:
    """Start them; the address of the bus, and they."""
    with EmbeddedServer(store_dir=folder / "bus") as server, contextlib.ExitStack() as stack:
        pids = {"bus": server.pid}
        for name in ("planner", "detector"):
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            argv = [sys.executable, "-m", f"trainmover_{name}", "--job", JOB, "--nats", server.url]
            process = subprocess.Popen(argv, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            pids[name] = process.pid
        yield server.url, Services(pids)


class Run:
    """One job of one size.

    Args:
        ranks: Ranks of it.
        groups: Processes for its machines.
        sharing: Machines that share a connection.
    """

    def __init__(self, ranks: int, *, groups: int, sharing: int) -> None:
        self._sharing = sharing
        self.slots = ranks // RANKS
        self._groups = groups
        self._seen: dict[str, list[Any]] = {}
        self._changed = asyncio.Event()
        self._named = self.slots + SPARE
        self._members: list[str] = []

    async def play(self, url: str, it: Services, *, seconds: int, each: int) -> dict[str, Any]:
        """Form the job, leave it alone, move some machines, kill some."""
        names = [f"node-{number}" for number in range(self._named)]
        nnodes = (self.slots, self._named)
        spawn = multiprocessing.get_context("spawn")
        pipes, processes = [], []
        async with NatsBus(url, name="scale", connect_timeout=30.0, timeout_s=30.0) as bus:
            await bus.setup()
            for kind in ("job.*", "migration.*", "incident.*"):
                await bus.client.subscribe(f"tm.v1.{JOB}.{kind}", cb=self._see)
            try:
                with it.measured("forming"):
                    for part in split(names, self._groups):
                        ours, theirs = spawn.Pipe()
                        one = spawn.Process(
                            target=speak, args=(Cast(JOB, url, nnodes, part, self._sharing), theirs)
                        )
                        one.start()
                        processes.append(one)
                        pipes.append(ours)
                    await self._until("job.formed")
                    await self._all_train(bus)
                await asyncio.sleep(_CALM_S)
                with it.measured("quiet"):
                    await asyncio.sleep(seconds)
                asked = await self._disturb(bus, it, each=each)
                await bus.client.publish(CONTROL, b'{"end": true}')
                await bus.client.flush()
                heard = [await asyncio.to_thread(pipe.recv) for pipe in pipes]
            finally:
                for one in processes:
                    one.terminate()
                    one.join()
            stored = await Stored.read(bus.client, JOB)
        return {
            "ranks": self.slots * RANKS,
            "machines": self.slots,
            "machines_per_connection": self._sharing,
            "cpu_per_second": it.taken,
            "peak_bytes": it.peaks(),
            "decisions": decisions(stored, asked=asked, heard=heard),
            "facts": len(stored.facts),
            "incidents": sorted(one["kind"] for one in self._seen.get("incident.opened", [])),
            "load": os.getloadavg()[0],
        }

    async def _see(self, message: Msg) -> None:
        _, _, kind = message.subject.partition(f"{JOB}.")
        body = json.loads(message.data)
        body.pop("plan", None)
        if (membership := body.pop("membership", None)) is not None:
            self._members = [member["machine"] for member in membership["members"]]
        self._seen.setdefault(kind, []).append(body)
        self._changed.set()

    async def _until(self, kind: str, count: int = 1) -> None:
        async with asyncio.timeout(_LIMIT_S):
            while len(self._seen.get(kind, [])) < count:
                self._check()
                self._changed.clear()
                await self._changed.wait()

    def _check(self) -> None:
        for kind in ("job.failed", "migration.failed", "migration.aborted", "migration.rejected"):
            if (said := self._seen.get(kind)) is not None:
                raise RuntimeError(f"{kind}: {said[-1]}")

    async def _all_train(self, bus: NatsBus) -> None:
        """Wait until each machine has said how far it is."""
        heard, all_of_them = set[str](), asyncio.Event()

        async def hear(message: Msg) -> None:
            heard.add(message.subject)
            if len(heard) == self.slots:
                all_of_them.set()

        subscription = await bus.client.subscribe(f"tm.v1.{JOB}.step.progress.*", cb=hear)
        async with asyncio.timeout(_LIMIT_S):
            await all_of_them.wait()
        await subscription.unsubscribe()

    async def _disturb(self, bus: NatsBus, it: Services, *, each: int) -> dict[str, float]:
        """Move and kill machines; when each move was asked for, seconds since 1970."""
        asked: dict[str, float] = {}
        committed = 0

        async def disturbed(part: str, act: Callable[[], Any]) -> None:
            nonlocal committed
            committed += 1
            with it.measured(part):
                await act()
                await self._until("migration.committed", committed)
            await asyncio.sleep(_CALM_S)

        for number in range(each):
            slot = (37 * number + 3) % min(self.slots, WARM)

            async def move(name: str = self._members[slot]) -> None:
                at_s = time.time()
                request = MigrateRequest(machine=name, reason="scale")
                reply = json.loads(await bus.request(JOB, "migrate", request, timeout_s=60))
                if not reply.get("migration"):
                    raise RuntimeError(f"{name} does not move: {reply}")
                asked[reply["migration"]] = at_s

            await disturbed(f"move {number}", move)
        for number in range(each):
            slot = (41 * number + 11) % min(self.slots, WARM)

            async def kill(slot: int = slot) -> None:
                name, other = self._members[slot], self._members[(slot + 1) % self.slots]
                await bus.client.publish(CONTROL, json.dumps({"kill": name}).encode())
                fresh, self._named = f"node-{self._named}", self._named + 1
                add = {"add": fresh, "beside": other}
                await bus.client.publish(CONTROL, json.dumps(add).encode())

            await disturbed(f"kill {number}", kill)
        return asked


def measure(ranks: int, *, seconds: int, each: int, groups: int, sharing: int) -> dict[str, Any]:
    """All figures of one size."""
    with tempfile.TemporaryDirectory(prefix="tm-scale-", ignore_cleanup_errors=True) as name:
        try:
            with services(Path(name)) as (url, it):
                for pid in it.pids.values():
                    forget_peak(pid)
                run = Run(ranks, groups=groups, sharing=sharing)
                return asyncio.run(run.play(url, it, seconds=seconds, each=each))
        except BaseException:
            for log in Path(name).glob("*.log"):
                sys.stderr.write(f"-- {log.name}\n{log.read_text()[-4000:]}\n")
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seconds", type=int, default=20, help="in which nothing happens")
    parser.add_argument("--each", type=int, default=2, help="moves, and as many kills")
    parser.add_argument("--groups", type=int, default=2, help="processes for the machines")
    parser.add_argument("--sharing", type=int, default=16, help="machines that share a connection")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    observe.configure(service="scale", level="error")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows = []
    for ranks in sorted(options.ranks):
        rows.append(
            measure(
                ranks,
                seconds=options.seconds,
                each=options.each,
                groups=options.groups,
                sharing=options.sharing,
            )
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"rows": rows}, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
