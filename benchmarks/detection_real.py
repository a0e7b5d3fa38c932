"""Real jobs on this host with real troubles: what the detectors of a running stack say of them.

Each trouble begins in a job that has been calm for some steps and ends before the next one. The
time of a finding is when the incident arrives over the bus; steps are counted by the job itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.programs.watched import CONTROL, PROGRESS
from benchmarks.proxy import Proxy
from trainmover.detection import Finding
from trainmover.detection.evaluation.scoring import Label, Score, TimedFinding, score
from trainmover.events.incident import IncidentOpened
from trainmover.events.migration import MigrationCommitted
from trainmover_console.demo.faults import Throttle, workers_of

RANKS = 4
CALM_STEPS = 56
"""Steps before and between troubles: detectors learn what is usual for this job."""
LIMIT_S = 45.0
NARROW_BYTES_PER_S = 12e6
EXCUSED = frozenset({"degraded"})
"""Other work on this host makes all ranks slower alike: true, and not what was done to the job."""


@dataclass
class Job:
    """A running job that can be hurt."""

    cluster: Cluster
    control: int
    progress: int
    proxy: Proxy

    @property
    def step(self) -> int:
        return int(PROGRESS.unpack(os.pread(self.progress, PROGRESS.size, 0))[0])

    async def steps(self, count: int) -> None:
        goal = self.step + count
        async with asyncio.timeout(300):
            while self.step < goal:  # noqa: ASYNC110 - another process writes it to a file
                await asyncio.sleep(0.02)

    def order(self, rank: int, *, factor: float = 1.0, loader_s: float = 0, hangs: bool = False):
        os.pwrite(self.control, CONTROL.pack(factor, loader_s, hangs), rank * CONTROL.size)

    def findings(self, since_s: float) -> list[tuple[float, IncidentOpened]]:
        return [
            (at_s, fact)
            for at_s, fact in self.cluster.facts
            if at_s >= since_s and isinstance(fact, IncidentOpened)
        ]

    async def agent(self, rank: int) -> int:
        record = await self.cluster._record()
        return record.processes[self.cluster.holder(rank)]

    async def calm(self) -> None:
        """Until no incident is open and some steps went by."""
        await self.cluster.until(
            lambda view: all(
                each.closed or each.kind in EXCUSED for each in view.incidents.values()
            ),
            limit_s=120,
        )
        await self.steps(CALM_STEPS)


@asynccontextmanager
async def job(
    *, nnodes: str, step_s: float, options: tuple[str, ...] = (), proxied: bool = False
) -> AsyncIterator[Job]:
    """A job of ``benchmarks.programs.watched`` that is past its warm-up."""
    with tempfile.TemporaryDirectory() as folder, Proxy() as proxy:
        control, progress = Path(folder) / "control", Path(folder) / "progress"
        control.write_bytes(CONTROL.pack(1.0, 0.0, 0.0) * RANKS)
        progress.write_bytes(PROGRESS.pack(0))
        program = ["-m", "benchmarks.programs.watched", "--step", str(step_s)]
        program += ["--control", str(control), "--progress", str(progress)]
        environment = {}
        if proxied:
            program += ["--proxy", proxy.address]
            environment = {"TRAINMOVER_TRANSPORT": "tcp"}
        async with Cluster(
            nnodes=nnodes, program=program, environment=environment, options=options
        ) as cluster:
            fds = [os.open(control, os.O_RDWR), os.open(progress, os.O_RDONLY)]
            try:
                one = Job(cluster, *fds, proxy)
                await one.steps(CALM_STEPS)
                yield one
            finally:
                for fd in fds:
                    os.close(fd)


@dataclass(frozen=True)
class Trouble:
    """What is done to a job, and what should be said about it."""

    name: str
    kind: str
    rank: int
    link: tuple[int, int] | None = None

    async def begin(self, job: Job) -> Callable[[], Any]:
        """Hurt it; returns what ends that."""
        match self.name:
            case "frozen":
                (pid,) = workers_of(await job.agent(self.rank))
                os.kill(pid, signal.SIGSTOP)
                return lambda: os.kill(pid, signal.SIGCONT)
            case "throttled":
                throttle = Throttle(await job.agent(self.rank), stop_s=0.02, go_s=0.02)
                task = asyncio.ensure_future(throttle.run())
                return task.cancel
            case "compute_20":
                job.order(self.rank, factor=1.2)
            case "compute_2x":
                job.order(self.rank, factor=2.0)
            case "loader_stalls":
                job.order(self.rank, loader_s=0.1)
            case "hang":
                job.order(self.rank, hangs=True)
                return lambda: job.order(self.rank)
            case "slow_link":
                assert self.link is not None
                job.proxy.narrow(*self.link, bytes_per_s=NARROW_BYTES_PER_S)
                return job.proxy.free
            case "hang_link":
                assert self.link is not None
                job.proxy.narrow(*self.link, bytes_per_s=0)
                return job.proxy.free
        return lambda: job.order(self.rank)

    def label(self, job: Job, since_s: float) -> Label:
        return Label(
            kind=self.kind,
            since_s=since_s,
            machine=None if self.link else job.cluster.holder(self.rank),
            link=self.link,
            since_step=job.step,
            excuses=EXCUSED,
        )


KINDS = {
    "frozen": "hang",
    "hang": "hang",
    "compute_20": "straggler",
    "compute_2x": "straggler",
    "throttled": "straggler",
    "loader_stalls": "straggler",
    "slow_link": "link_slow",
    "hang_link": "link_hang",
}
CLASSES = (*KINDS, "kill_9")


def troubles(names: list[str], *, seed: int, ways: list[tuple[int, int]]) -> list[Trouble]:
    """One of each, at random ranks and links. What stops a job comes last: detectors learn from it
    how long this job's steps may take.
    """
    rng = random.Random(seed)
    stops = [name for name in names if KINDS[name] in {"hang", "link_hang"}]
    others = [name for name in names if name not in stops]
    rng.shuffle(others)
    return [
        Trouble(
            name,
            KINDS[name],
            rng.randrange(RANKS),
            rng.choice(ways) if "link" in name else None,
        )
        for name in [*others, *stops]
    ]


async def play(job: Job, trouble: Trouble) -> Score:
    """One trouble: hurt the job, wait for what is said, make it whole, wait for calm."""
    since_s = time.monotonic()
    label = trouble.label(job, since_s)
    end = await trouble.begin(job)
    steps: dict[str, int] = {}
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                while True:
                    for _, fact in job.findings(since_s):
                        steps.setdefault(fact.id, job.step)
                    if any(fact.kind == trouble.kind for _, fact in job.findings(since_s)):
                        await asyncio.sleep(0.5)  # whatever else is said at the same time counts
                        break
                    await asyncio.sleep(0.01)
    finally:
        end()
    findings = [
        TimedFinding(at_s, steps.get(fact.id, job.step), _finding(fact))
        for at_s, fact in job.findings(since_s)
    ]
    total = Score()
    for each in score([label], findings).values():
        total.add(each)
    print(trouble, total.as_data(), [c.finding.summary for c in findings], file=sys.stderr)
    await job.calm()
    return total


def _finding(fact: IncidentOpened) -> Finding:
    return Finding(
        fact.kind, fact.machine, fact.rank, fact.confidence, fact.summary, link=fact.link
    )


async def crashes(times: int) -> Score:
    """``kill -9`` of a worker whose machine is healthy: from the signal to the incident."""
    total, rng = Score(), random.Random(11)
    async with job(nnodes="4", step_s=0.15, options=("--on-worker-crash", "restart")) as one:
        for _ in range(times):
            rank = rng.randrange(RANKS)
            (pid,) = workers_of(await one.agent(rank))
            before = len(one.cluster.facts)
            label = Label(
                kind="machine_failed",
                since_s=time.monotonic(),
                machine=one.cluster.holder(rank),
                since_step=one.step,
                excuses=EXCUSED,
            )
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await one.cluster.until(
                    lambda _, since_s=label.since_s: one.findings(since_s), limit_s=LIMIT_S
                )
            findings = [
                TimedFinding(at, one.step, _finding(f)) for at, f in one.findings(label.since_s)
            ]
            for each in score([label], findings).values():
                total.add(each)
            print("kill", total.as_data(), [c.finding.summary for c in findings], file=sys.stderr)
            await one.cluster.until(
                lambda _, seen=before: any(
                    isinstance(fact, MigrationCommitted) for _, fact in one.cluster.facts[seen:]
                )
            )
            await one.calm()
    return total


async def measure(names: Sequence[str] = CLASSES, *, times: int) -> dict[str, Score]:
    """Scores by class, so many troubles of each."""
    found: dict[str, Score] = {}
    links = [name for name in names if "link" in name]
    others = [name for name in names if name in KINDS and name not in links]
    for seed in range(times):
        for chosen, proxied in ((others, False), (links, True)):
            if not chosen:
                continue
            async with job(nnodes=str(RANKS), step_s=0.15, proxied=proxied) as one:
                for trouble in troubles(chosen, seed=seed, ways=one.proxy.busy()):
                    found.setdefault(trouble.name, Score()).add(await play(one, trouble))
    if "kill_9" in names:
        found["kill_9"] = await crashes(times)
    return found


async def healthy(minutes: float) -> list[tuple[str, str]]:
    """Incidents (kind, summary) of a job to which nothing is done, on whatever host this is."""
    async with job(nnodes=str(RANKS), step_s=0.15) as one:
        await asyncio.sleep(minutes * 60)
        return [(fact.kind, fact.summary) for _, fact in one.findings(0.0)]
