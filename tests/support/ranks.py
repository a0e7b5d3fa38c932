"""Real training processes driven by the test itself, which plays agent and planner for them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmover.commands import Prepare, Recover
from trainmover.job.plan import Move, Plan
from trainmover.job.topology import Frozen, Layout, Member, Membership
from trainmover_executor.clock.memory import ClockMemory
from trainmover_executor.messages.forks import (
    DEFAULT_ENTRY,
    Exited,
    Spawn,
    Spawned,
    parse_from_forks,
)
from trainmover_executor.messages.worker import (
    Fact,
    FrameReader,
    WorkerSpec,
    pack,
    parse_from_worker,
)


class Process:
    """A forked worker, as the test sees it."""

    def __init__(self) -> None:
        self.pid = 0
        self.status: Exited | None = None
        self._started = threading.Event()
        self._ended = threading.Event()

    def started(self, pid: int) -> None:
        self.pid = pid
        self._started.set()

    def ended(self, status: Exited) -> None:
        self.status = status
        self._started.set()
        self._ended.set()

    def kill(self, signum: int = signal.SIGKILL) -> None:
        assert self._started.wait(30)
        if not self._ended.is_set():
            os.kill(self.pid, signum)

    def wait(self, *, timeout_s: float) -> Exited:
        assert self._ended.wait(timeout_s), f"process {self.pid} did not end in {timeout_s} s"
        assert self.status is not None
        return self.status


_SERVER = "from trainmover_executor.forkserver.server import main; main()"


class Nursery:
    """One fork server for all tests of a session: ranks start in milliseconds.

    Args:
        environment: What its ranks have besides.
        preload: Modules that take seconds to import, and that all programs need.
    """

    def __init__(
        self, *, environment: Mapping[str, str] | None = None, preload: Iterable[str] = ()
    ) -> None:
        self._peer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server = subprocess.Popen(
            [
                sys.executable,
                *("-W", "ignore", "-c", f"import {', '.join(['sys', *preload])}; {_SERVER}"),
                *("--fd", str(theirs.fileno()), "--parent", str(os.getpid())),
            ],
            env={**os.environ, **(environment or {})},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._processes: dict[str, Process] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        reader = FrameReader()
        with contextlib.suppress(OSError):
            while data := self._peer.recv(65536):
                for header, _ in reader.feed(data):
                    news = parse_from_forks(header)
                    if isinstance(news, Spawned):
                        self._processes[news.key].started(news.pid)
                    elif isinstance(news, Exited):
                        self._processes.pop(news.key).ended(news)

    def spawn(self, spec: WorkerSpec, listener: socket.socket) -> Process:
        key = uuid.uuid4().hex
        process = self._processes[key] = Process()
        order = Spawn(key=key, spec=spec, entry=DEFAULT_ENTRY, background=False)
        _, clock = ClockMemory.shared()
        socket.send_fds(self._peer, [pack(order)], [listener.fileno(), clock])
        listener.close()
        os.close(clock)
        return process

    @contextlib.contextmanager
    def asleep(self) -> Iterator[None]:
        """The fork server does nothing, as on a machine that died as a whole."""
        self._server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._peer.shutdown(socket.SHUT_RDWR)
        self._server.wait(timeout=10)
        self._reader.join(timeout=5)
        self._peer.close()


@dataclass
class Rank:
    """One training process and the test's end of its control socket."""

    spec: WorkerSpec
    process: Process
    listener: socket.socket
    inbox: queue.Queue[Frozen] = field(default_factory=queue.Queue)
    seen: list[Frozen] = field(default_factory=list)
    connection: socket.socket | None = None
    connected: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        self.connection, _ = self.listener.accept()
        self.connected.set()
        reader = FrameReader()
        with contextlib.suppress(OSError):
            while data := self.connection.recv(65536):
                for header, _ in reader.feed(data):
                    message = parse_from_worker(header)
                    model = message.model() if isinstance(message, Fact) else message
                    self.seen.append(model)
                    self.inbox.put(model)

    def tell(self, command: Frozen) -> None:
        assert self.connected.wait(30)
        assert self.connection is not None
        self.connection.sendall(pack(command))

    def expect(self, *kinds: type[Frozen], timeout_s: float = 60) -> Any:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                message = self.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"rank {self.spec.rank} on {self.spec.machine}: no {wanted} in {timeout_s} s; "
                    f"exit {self.process.status}; seen {self.seen[-5:]}"
                ) from None
            if isinstance(message, kinds):
                return message


class RanksJob:
    """A job of a few ranks per machine, without agents, bus, detector or planner."""

    def __init__(
        self,
        nursery: Nursery,
        program: list[str],
        *,
        slots: int,
        folder: Path,
        as_module: bool = False,
        ranks_per_slot: int = 1,
        redundancy: str = "auto",
        ring: tuple[int, ...] = (),
    ) -> None:
        self._nursery = nursery
        self._redundancy = redundancy
        self.layout = Layout(slots=slots, ranks_per_slot=ranks_per_slot)
        self.folder = folder
        self.program = program
        self.as_module = as_module
        self.everyone: list[Rank] = []
        self._sockets = tempfile.TemporaryDirectory(prefix="tm-")
        listeners = [self._listen() for _ in range(self.layout.world_size)]
        self.membership = Membership(
            epoch=1,
            layout=self.layout,
            members=tuple(
                self._member(f"m{i}", *(listeners[rank] for rank in self.layout.ranks_of(i)))
                for i in range(slots)
            ),
            ring=ring,
        )
        self.ranks = [
            self._spawn(f"m{self.layout.slot_of(rank)}", rank, "active", listener)
            for rank, listener in enumerate(listeners)
        ]

    @staticmethod
    def _listen() -> socket.socket:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        return listener

    @staticmethod
    def _member(machine: str, *listeners: socket.socket) -> Member:
        endpoints = tuple(f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners)
        return Member(machine=machine, generation=0, endpoints=endpoints)

    def _spawn(
        self,
        machine: str,
        rank: int,
        role: str,
        listener: socket.socket,
        *,
        nursery: Nursery | None = None,
    ) -> Rank:
        path = f"{self._sockets.name}/{machine}-{rank}"
        control = socket.socket(socket.AF_UNIX)
        control.bind(path)
        control.listen(1)
        spec = WorkerSpec.model_validate(
            {
                "job": "test",
                "machine": machine,
                "generation": 0,
                "rank": rank,
                "local_rank": rank % self.layout.ranks_per_slot,
                "role": role,
                "membership": self.membership,
                "control": path,
                "listen_fd": listener.fileno(),
                "clock_fd": -1,  # the fork server puts its own numbers here
                "endpoint": f"127.0.0.1:{listener.getsockname()[1]}",
                "program": tuple(self.program),
                "as_module": self.as_module,
                "redundancy": self._redundancy,
                "metrics_dir": str(self.folder),
            }
        )
        process = (nursery or self._nursery).spawn(spec, listener)
        member = Rank(spec=spec, process=process, listener=control)
        threading.Thread(target=member.read, daemon=True).start()
        self.everyone.append(member)
        return member

    def standby(
        self, machine: str, slot: int, *, nursery: Nursery | None = None
    ) -> tuple[Rank, Member]:
        (rank,), member = self.standbys(machine, slot, nursery=nursery)
        return rank, member

    def standbys(
        self, machine: str, slot: int, *, nursery: Nursery | None = None
    ) -> tuple[list[Rank], Member]:
        """A standby's process for each rank of ``slot``, with the environment of ``nursery``."""
        ranks = self.layout.ranks_of(slot)
        listeners = [self._listen() for _ in ranks]
        member = self._member(machine, *listeners)
        spawned = [
            self._spawn(machine, rank, "standby", listener, nursery=nursery)
            for rank, listener in zip(ranks, listeners, strict=True)
        ]
        return spawned, member

    def plan(
        self,
        kind: str,
        slot: int,
        joiner: Member,
        *,
        source: int | None = None,
        epoch: int | None = None,
    ) -> Plan:
        sources = None if source is None else {slot: source}
        return self.plan_of(kind, {slot: joiner}, sources=sources, epoch=epoch)

    def plan_of(
        self,
        kind: str,
        joiners: Mapping[int, Member],
        *,
        sources: Mapping[int, int] | None = None,
        epoch: int | None = None,
    ) -> Plan:
        """A plan for several slots; every rank's state is its own where no source is named."""
        membership = self.membership.replace(joiners, epoch=epoch)
        ranks = [rank for slot in joiners for rank in self.layout.ranks_of(slot)]
        return Plan.model_validate(
            {
                "id": f"m-{membership.epoch}",
                "job": "test",
                "kind": kind,
                "from_epoch": self.membership.epoch,
                "membership": membership,
                "moves": tuple(
                    Move(
                        slot=slot,
                        leaver=self.membership.members[slot].machine,
                        joiner=joiner.machine,
                    )
                    for slot, joiner in sorted(joiners.items())
                ),
                "sources": {rank: rank for rank in ranks} if sources is None else sources,
            }
        )

    def move(self, slot: int, standby: Rank, joiner: Member, *, without: int | None = None) -> Plan:
        """Tell everybody to prepare a planned move; it cannot happen ``without`` a stayer."""
        plan = self.plan("planned", slot, joiner)
        for rank in [*self.ranks, standby]:
            if rank is standby or rank.spec.rank != without:
                rank.tell(Prepare(plan=plan))
        return plan

    def recover(self, slot: int, standby: Rank, joiner: Member, *, source: int) -> Plan:
        """Tell the survivors and the joiner to recover."""
        plan = self.plan("failure", slot, joiner, source=source)
        for rank in [*(r for i, r in enumerate(self.ranks) if i != slot), standby]:
            rank.tell(Recover(plan=plan))
        return plan

    def give_back(self, plan: Plan) -> Plan:
        """The failure plan after a switch whose joiner died: the old membership, a later epoch."""
        return Plan.model_validate(
            {
                "id": f"m-{plan.epoch + 1}",
                "job": "test",
                "kind": "failure",
                "from_epoch": plan.epoch,
                "membership": self.membership.replace({}, epoch=plan.epoch + 1),
                "moves": (),
                "sources": {},
            }
        )

    def same_again(self) -> Plan:
        """The failure plan after a broken step that cost nobody's life."""
        membership = self.membership.replace({}, epoch=self.membership.epoch + 1)
        return Plan.model_validate(
            {
                "id": f"m-{membership.epoch}",
                "job": "test",
                "kind": "failure",
                "from_epoch": self.membership.epoch,
                "membership": membership,
                "moves": (),
                "sources": {},
            }
        )

    def took(self, plan: Plan, standby: Rank) -> None:
        """The joiner fills the slot from now on."""
        self.took_all(plan, [standby])

    def took_all(self, plan: Plan, joined: Iterable[Rank]) -> None:
        """The joiners fill their slots from now on."""
        self.membership = plan.membership
        for rank in joined:
            self.ranks[rank.spec.rank] = rank

    def finish(self, *, timeout_s: float = 120) -> list[dict[str, Any]]:
        """Wait for the end; each rank's final record."""
        for rank in self.ranks:
            status = rank.process.wait(timeout_s=timeout_s)
            assert status.exit_code == 0, f"rank {rank.spec.rank} exited with {status}"
        finals = [self.folder / f"rank-{r}.final.json" for r in range(self.layout.world_size)]
        return [json.loads(path.read_text()) for path in finals]

    def losses(self, rank: int) -> dict[int, str]:
        lines = (self.folder / f"rank-{rank}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        steps = [record["step"] for record in records]
        assert steps == list(range(len(steps))), f"rank {rank} logged steps {steps}"
        return {record["step"]: record["loss_hex"] for record in records}

    def close(self) -> None:
        for rank in self.everyone:
            rank.process.kill()
            rank.process.wait(timeout_s=10)
            rank.listener.close()
            if rank.connection is not None:
                rank.connection.close()
        self._sockets.cleanup()

    def __enter__(self) -> RanksJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
