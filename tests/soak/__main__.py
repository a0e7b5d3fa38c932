"""``python -m tests.soak --minutes 60``: a fault every few seconds, and nothing may pile up.

Machines move and die at random; each death is followed by a new machine that joins as a standby.
At the end losses and final state must equal an undisturbed run's, and neither memory nor file
descriptors of what lived through all of it may have grown in the second half.

With ``--harsh`` the bus stops now and then, its disk fills and is freed, and all clocks are off and
step by hours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.run import tree_of
from tests.soak.harsh import HarshBus, harsh_bus, odd_clocks
from tests.support.cluster import ClusterJob

from trainmover.tracing import observe

WORKLOADS = str(Path(__file__).parents[1] / "jobs" / "workloads.py")
PACE_S = 0.1
SLOTS = 3
GROWTH = 1.15
"""Most that resident memory may grow from the second to the last quarter."""
_OF_THE_BUS = 0.4
"""Share of the faults that are the bus's, in a harsh soak."""
SETTLES_KB = {"bus": 96 * 1024}
"""A service may grow to this size whatever it began with.

nats-server keeps the block that it writes to in memory for each stream, 8 MB when it is full, and
its garbage collector lets the process grow to about twice what is in use:
``python -m benchmarks.bus_memory`` shows where that levels off.
"""


class Soak:
    """One job under siege."""

    def __init__(
        self, job: ClusterJob, *, seed: int, program: list[str], bus: HarshBus | None = None
    ) -> None:
        self.job = job
        self._bus = bus
        self._program = program
        self._random = random.Random(seed)
        self._added: dict[str, subprocess.Popen[bytes]] = {}
        self._number = 100
        self.samples: dict[str, list[tuple[int, int]]] = {}
        self.faults: dict[str, int] = {}

    def run(self, generator: random.Random, *, every: tuple[float, float]) -> None:
        """Disturb the job until it ends.

        Args:
            generator: Decides when.
            every: Fewest and most seconds between two faults.
        """
        try:
            while self.job.process.poll() is None:
                self.sample()
                self.reinforce()
                self.disturb()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.job.process.wait(generator.uniform(*every))
        finally:
            self.close()

    def machines(self) -> list[dict[str, Any]]:
        """What the planner says of the machines; nothing while it does not answer."""
        answer = self.job.cli("status", "-o", "json")
        planner = json.loads(answer.stdout)["planner"] if answer.returncode == 0 else None
        return planner["machines"] if planner else []

    def pids(self) -> dict[str, int]:
        """Processes of services and machines by name."""
        added = {name: one.pid for name, one in self._added.items() if one.poll() is None}
        return {**self.job.runtime()["processes"], **added}

    def sample(self) -> None:
        """Memory (kB) and descriptors of what is meant to live for ever."""
        for name in ("planner", "detector", "bus"):
            if (pid := self.pids().get(name)) is None:
                continue  # a bus of our own is started anew now and then
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            memory = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
            descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            self.samples.setdefault(name, []).append((memory, descriptors))

    def disturb(self) -> None:
        """One fault, where a standby is there to take it."""
        if self._bus is not None and self._random.random() < _OF_THE_BUS:
            kind = self._random.choice(self._bus.FAULTS)
            self.faults[kind] = self.faults.get(kind, 0) + 1
            print(kind, flush=True)
            if self._random.random() < 0.5:
                self._disturb_machine()  # so that it stops in the midst of a failover
            self._bus.disturb(kind)
            return
        self._disturb_machine()

    def _disturb_machine(self) -> None:
        machines = self.machines()
        covered = {slot for one in machines if one["role"] == "standby" for slot in one["ready"]}
        members = [
            one["machine"] for one in machines if one["role"] == "member" and one["slot"] in covered
        ]
        if not members:
            return
        kind = self._random.choice(["move", "move", "kill", "kill_rank", "pause"])
        victim = self._random.choice(members)
        self.faults[kind] = self.faults.get(kind, 0) + 1
        print(f"{kind} {victim}", flush=True)
        if kind == "move":
            self.job.cli("migrate", victim, "--yes", "--no-wait", "--reason", "soak")
            return
        pids = tree_of(self.pids()[victim])
        if kind == "pause":
            self._signal(pids, signal.SIGSTOP)
            time.sleep(self._random.uniform(0.2, 3.0))
            self._signal(pids, signal.SIGCONT)
        elif kind == "kill":
            self._signal(pids, signal.SIGKILL)
        else:
            self._signal(pids[-1:], signal.SIGKILL)

    def reinforce(self) -> None:
        """Keep two machines in reserve."""
        gone = {"lost", "released", "quarantined"}
        alive = [one for one in self.machines() if one["role"] not in gone]
        missing = SLOTS + 2 - len(alive) if alive else 0
        for _ in range(missing):
            self._number += 1
            name = f"node-{self._number}"
            argv = [sys.executable, "-m", "trainmover_executor.agent", "--job", self.job.name]
            argv += ["--nats", self.job.runtime()["nats"], "--machine", name]
            argv += ["--nnodes", f"{SLOTS}:{SLOTS + 2}", "--metrics-dir", str(self.job.metrics)]
            argv += ["--log-dir", str(self.job.home / "logs" / self.job.name)]
            environment = {**os.environ, "TRAINMOVER_HOME": str(self.job.home)}
            environment["OMP_NUM_THREADS"] = "1"
            with (self.job.home / f"{name}.log").open("ab") as log:
                self._added[name] = subprocess.Popen(
                    [*argv, "--", *self._program], env=environment, stdout=log, stderr=log
                )

    @staticmethod
    def _signal(pids: list[int], signum: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def close(self) -> None:
        """End the machines that were added."""
        for process in self._added.values():
            if process.poll() is None:
                self._signal(tree_of(process.pid), signal.SIGCONT)
                process.terminate()
        for process in self._added.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)


Sample = tuple[int, int]
"""Resident memory in kB, and how many file descriptors are open."""


def quarters(samples: list[Sample]) -> tuple[list[float], list[float]]:
    """Memory and descriptors in the second quarter and in the last, each as the median."""
    quarter = max(1, len(samples) // 4)
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]
    memory = [statistics.median(m for m, _ in part) for part in (before, after)]
    descriptors = [statistics.median(d for _, d in part) for part in (before, after)]
    return memory, descriptors


def grown(samples: list[Sample], *, settles_kb: int = 0) -> str:
    """What grew in the second half, for people; empty when nothing did."""
    memory, descriptors = quarters(samples)
    if memory[1] > max(memory[0] * GROWTH, settles_kb):
        return f"memory from {memory[0]:.0f} to {memory[1]:.0f} kB"
    if descriptors[1] > descriptors[0] + 8:
        return f"file descriptors from {descriptors[0]:.0f} to {descriptors[1]:.0f}"
    return ""


def finals_and_losses(job: ClusterJob) -> tuple[list[Any], list[dict[int, str]]]:
    return list(job.finals()), job.losses()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="made up and printed when omitted")
    parser.add_argument("--harsh", action="store_true", help="bus, disk and clocks fail as well")
    parser.add_argument("--every", type=float, nargs=2, default=(10, 20), metavar="S")
    options = parser.parse_args()
    observe.configure(service="soak", level="error")
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    steps = int(options.minutes * 60 / PACE_S)
    program = [WORKLOADS, "ddp", "--steps", str(steps)]
    print(f"seed {seed}, {steps} steps of at least {PACE_S} s", flush=True)
    generator = random.Random(seed)
    problems = []
    besieged = [*program, "--pace", str(PACE_S)]
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="tm-soak-", ignore_cleanup_errors=True)
            )
        )
        plain = stack.enter_context(ClusterJob(folder / "plain", "--nnodes", str(SLOTS), *program))
        bus, where = None, []
        if options.harsh:
            bus = stack.enter_context(harsh_bus(folder / "disk", seed=seed))
            where = ["--nats", bus.server.url]
            stack.enter_context(odd_clocks())
        shape = ["--nnodes", f"{SLOTS}:{SLOTS + 2}", *where]
        job = stack.enter_context(ClusterJob(folder / "home", *shape, *besieged))
        job.until(r"job\.formed")
        soak = Soak(job, seed=seed, program=besieged, bus=bus)
        soak.run(generator, every=options.every)
        code = job.finish(timeout_s=60)
        assert plain.finish(timeout_s=60 + steps) == 0, plain.output
        expected = finals_and_losses(plain)
        if code:
            problems.append(f"the job ended with {code}:\n{job.output[-3000:]}")
        elif job.finals() != expected[0]:
            problems.append("the final state differs")
        deaths = sum(soak.faults.get(kind, 0) for kind in ("kill", "kill_rank"))
        for got, straight in zip(job.losses(), expected[1], strict=True):
            missing = straight.keys() - got.keys()
            if got != {step: loss for step, loss in straight.items() if step not in missing}:
                problems.append("the loss curve differs")
            if len(missing) > deaths:  # committed by its peers, killed before it wrote the line
                problems.append(f"{len(missing)} steps were not logged")
    for service, samples in soak.samples.items():
        if words := grown(samples, settles_kb=SETTLES_KB.get(service, 0)):
            problems.append(f"{service}: {words}")
    result = {
        "seed": seed,
        "steps": steps,
        "faults": soak.faults,
        "memory_kb": {service: quarters(samples)[0] for service, samples in soak.samples.items()},
        "problems": problems,
    }
    print(json.dumps(result))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
