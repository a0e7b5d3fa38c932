"""Starts the job under one system, disturbs it, and waits until its whole world steps again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.cluster import Cluster
from benchmarks.peers.measure import Held, Said, held, said_in, step_s, whole
from trainmover.runtime import procfs

__all__ = ["SCENES", "Measured", "Scene"]

Found = TypeVar("Found")

PROGRAMS = Path(__file__).parent / "programs"
STEADY = 25
"""Steps in front of a disturbance; file checkpoints are half as old then as they get."""
_LIMIT_S = 180.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """One disturbance of one job.

    Attributes:
        held: What it cost.
        step_s: A step in front of it.
    """

    held: Held
    step_s: float


@dataclass(frozen=True, slots=True)
class Scene:
    """A system and a way to disturb it.

    Attributes:
        system: Who runs the job.
        kind: ``crash`` or ``planned``.
        setting: How it is set up, for the table.
        program: Which of ``programs``.
        run: Measures it once, for a world of so many ranks.
    """

    system: str
    kind: str
    setting: str
    program: str
    run: Callable[[Peers, int], Measured]


@dataclass
class Peers:
    """Where the peers are installed, and the shape of the model.

    Attributes:
        venv: A virtual environment with all of them.
        nightly: Folder with torchft's nightly.
        environment: ``PEERS_WIDTH`` and ``PEERS_LAYERS``.
    """

    venv: Path
    nightly: Path
    environment: dict[str, str] = field(default_factory=dict)


class Job:
    """Processes of one job under a peer, and what its ranks said."""

    def __init__(self, peers: Peers, folder: Path, **environment: str) -> None:
        self.peers = peers
        self.folder = folder
        self.environment = {
            **os.environ,
            **peers.environment,
            "PEERS_OUT": str(folder),
            "PATH": f"{peers.venv}/bin:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            # With the store that agents share torchrun 2.13 does not come back from a dead worker.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            **environment,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, **environment: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env={**self.environment, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def said(self) -> list[Said]:
        return said_in(self.folder)

    def until(self, found: Callable[[list[Said]], Found | None], *, what: str) -> Found:
        """Wait until something can be found in what ranks said."""
        deadline = time.monotonic() + _LIMIT_S
        while (result := found(self.said())) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not in {_LIMIT_S:.0f} s; logs are in {self.folder}")
            time.sleep(_POLL_S)  # a peer's processes tell nobody but their files
        return result

    def until_steady(self, world: int) -> None:
        self.until_steps(world, more=STEADY)

    def until_steps(self, world: int, *, more: int) -> None:
        """Wait for so many more steps of the whole world."""
        goal = len(whole(self.said(), world=world)) + more
        self.until(
            lambda said: True if len(whole(said, world=world)) >= goal else None,
            what=f"{more} steps of {world} ranks",
        )

    def until_open(self, port: int) -> None:
        """Wait until somebody listens at ``port``."""

        def answer(_: list[Said]) -> bool | None:
            with socket.socket() as probe:
                return True if probe.connect_ex(("127.0.0.1", port)) == 0 else None

        self.until(answer, what=f"somebody at port {port}")

    def measured(self, world: int, *, at: float, leaver: int) -> Measured:
        """Wait until the world is whole without ``leaver``."""
        result = self.until(
            lambda said: held(said, world=world, at=at, leaver=leaver), what="whole again"
        )
        return Measured(result, step_s(self.said(), world=world, before=at))

    def pid_of(self, rank: int) -> int:
        return next(one.pid for one in reversed(self.said()) if one.rank == rank)

    def owner_of(self, pid: int) -> str:
        """The process started here that ``pid`` descends from."""
        return next(name for name, one in self.processes.items() if pid in _tree(one.pid))

    def kill(self, pid: int) -> None:
        """A machine is gone: nobody of it sees another one die."""
        tree = _tree(pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in tree:
                _signal(each, number)

    def close(self) -> None:
        for each in self.processes.values():
            self.kill(each.pid)
            each.wait()
        mark = f"PEERS_OUT={self.folder}".encode()
        for pid in procfs.snapshot():  # those that went their own way
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    _signal(pid, signal.SIGKILL)


def _tree(pid: int) -> list[int]:
    return [pid, *(stat.pid for _, stat in procfs.descendants(pid))]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def _job(peers: Peers, **environment: str) -> Iterator[Job]:
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    job = Job(peers, folder, **environment)
    try:
        yield job
    finally:
        job.close()
    shutil.rmtree(folder)  # logs of a run that failed stay


def _port() -> int:
    """Of which some above are free, too: below those that the kernel gives away."""
    while True:
        port = random.randrange(15_000, 30_000, 40)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


# -- torchrun ------------------------------------------------------------------------------------


def torchrun_worker(peers: Peers, world: int) -> Measured:
    """One agent; a worker dies, and all of them are started again."""
    with _job(peers) as job:
        command = ["torchrun", "--standalone", "--nproc-per-node", str(world)]
        job.start("agent", *command, "--max-restarts", "5", str(PROGRAMS / "plain.py"))
        job.until_steady(world)
        leaver = job.pid_of(world - 1)
        at = time.time()
        os.kill(leaver, signal.SIGKILL)
        return job.measured(world, at=at, leaver=leaver)


def torchrun_machine(peers: Peers, world: int) -> Measured:
    """An agent for each rank and one that waits; an agent dies with its worker."""
    with _job(peers) as job:
        port = _port()
        for index in range(world + 1):
            if index == world:  # who comes to a world that is whole is spare
                job.until_steady(world)
            command = ["torchrun", "--nnodes", str(world), "--nproc-per-node", "1"]
            command += ["--max-restarts", "5", "--rdzv-backend", "c10d", "--rdzv-id", "peers"]
            command += ["--rdzv-endpoint", f"localhost:{port}"]
            command += ["--rdzv-conf", f"is_host={int(index == 0)}"]
            job.start(f"agent-{index}", *command, str(PROGRAMS / "plain.py"))
            if index == 0:
                job.until_open(port)
        job.until_steps(world, more=STEADY)  # the spare agent has started meanwhile
        pids = [job.pid_of(rank) for rank in reversed(range(world))]
        leaver = next(pid for pid in pids if job.owner_of(pid) != "agent-0")
        at = time.time()
        job.kill(job.processes[job.owner_of(leaver)].pid)
        return job.measured(world, at=at, leaver=leaver)


# -- torchft -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _torchft(peers: Peers, machines: int, *, least: int, **environment: str) -> Iterator[Job]:
    port = _port()
    with _job(
        peers,
        PYTHONPATH=str(peers.nightly),
        PEERS_LEAST=str(least),
        TORCHFT_LIGHTHOUSE=f"http://localhost:{port}",
        **environment,
    ) as job:
        command = ["torchft_lighthouse", "--bind", f"[::]:{port}", "--min_replicas", str(least)]
        command += ["--quorum_tick_ms", "100", "--join_timeout_ms", "1000"]
        job.start("lighthouse", *command, "--heartbeat_timeout_ms", "1000")
        job.until_open(port)
        for index in range(machines):
            _replica(job, index)
        yield job


def _replica(job: Job, index: int) -> None:
    program = str(PROGRAMS / "replicas.py")
    job.start(f"replica-{index}", "python", program, PEERS_RANK=str(index))


def torchft_shrink(peers: Peers, world: int) -> Measured:
    """A replica dies, the others go on, another one is started at once."""
    with _torchft(peers, world, least=1) as job:
        job.until_steady(world)
        leaver = job.processes[f"replica-{world - 1}"].pid
        at = time.time()
        job.kill(leaver)
        _replica(job, world)
        return job.measured(world, at=at, leaver=leaver)


def torchft_spare(peers: Peers, world: int) -> Measured:
    """A replica more than needed computes zeros; one of the others dies."""
    with _torchft(peers, world + 1, least=world, PEERS_SPARES="1") as job:
        job.until_steady(world)
        leaver = job.processes["replica-1"].pid
        at = time.time()
        job.kill(leaver)
        return job.measured(world, at=at, leaver=leaver)


def torchft_planned(peers: Peers, world: int) -> Measured:
    """A replica is started, takes part, and an older one leaves behind its step."""
    with _torchft(peers, world, least=1) as job:
        job.until_steady(world)
        at = time.time()
        _replica(job, world)
        job.until(
            lambda said: True if any(one.rank == world for one in said) else None,
            what="a step of the new replica",
        )
        job.processes["replica-1"].terminate()
        return job.measured(world, at=at, leaver=job.processes["replica-1"].pid)


# -- NVIDIA Resiliency Extension -----------------------------------------------------------------


def _inprocess(number: signal.Signals) -> Callable[[Peers, int], Measured]:
    def run(peers: Peers, world: int) -> Measured:
        environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(_port())}
        with _job(peers, PEERS_ACTIVE=str(world), **environment) as job:
            program = str(PROGRAMS / "inprocess.py")
            size = str(world + 1)
            for index in range(world + 1):
                job.start(f"rank-{index}", "python", program, RANK=str(index), WORLD_SIZE=size)
            job.until_steady(world)
            leaver = job.pid_of(world - 1)
            at = time.time()
            os.kill(leaver, number)
            return job.measured(world, at=at, leaver=leaver)

    return run


# -- TrainMover ----------------------------------------------------------------------------------


def _trainmover(kind: str) -> Callable[[Peers, int], Measured]:
    def run(peers: Peers, world: int) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**peers.environment, "PEERS_OUT": folder, "PYTHONPATH": str(PROGRAMS)}
            return asyncio.run(_moved(kind, world, Path(folder), environment))

    return run


async def _moved(kind: str, world: int, folder: Path, environment: Mapping[str, str]) -> Measured:
    program = [str(PROGRAMS / "moved.py")]
    nnodes = f"{world}:{world + 1}"
    async with Cluster(nnodes=nnodes, program=program, environment=environment) as cluster:
        slot = world - 1
        await cluster.warm(slot=slot)
        await cluster.steps(STEADY)
        leaver = next(one.pid for one in reversed(said_in(folder)) if one.rank == slot)
        at = time.time()
        await (cluster.crash(slot) if kind == "crash" else cluster.migrate(slot))
        await cluster.steps(10)
        said = said_in(folder)
    result = held(said, world=world, at=at, leaver=leaver)
    assert result is not None, "the slot was not filled anew"
    return Measured(result, step_s(said, world=world, before=at))


SCENES = (
    Scene("TrainMover", "crash", "one warm standby", "moved", _trainmover("crash")),
    Scene("TrainMover", "planned", "one warm standby", "moved", _trainmover("planned")),
    Scene("torchrun", "crash", "one agent, a worker dies", "plain", torchrun_worker),
    Scene("torchrun", "crash", "a spare agent, a machine dies", "plain", torchrun_machine),
    Scene("torchft", "crash", "one hot spare", "replicas", torchft_spare),
    Scene("torchft", "crash", "shrinks, a new replica", "replicas", torchft_shrink),
    Scene("torchft", "planned", "a new replica, then one leaves", "replicas", torchft_planned),
    Scene("NVRx", "crash", "in process, one in reserve", "inprocess", _inprocess(signal.SIGKILL)),
    Scene("NVRx", "planned", "in process, one in reserve", "inprocess", _inprocess(signal.SIGTERM)),
)
