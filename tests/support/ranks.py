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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmover.commands import Prepare, Recover
from trainmover.plan import Move, Plan
from trainmover.topology import Frozen, Layout, Member, Membership
from trainmover_executor.control import Fact, FrameReader, WorkerSpec, pack, parse_from_worker

_BOOT = (
    "import os;"
    "from trainmover_executor.control import WorkerSpec;"
    "from trainmover_executor.worker import main;"
    "main(WorkerSpec.model_validate_json(os.environ['SPEC']))"
)


@dataclass
class Rank:
    """One training process and the test's end of its control socket."""

    spec: WorkerSpec
    process: subprocess.Popen[bytes]
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

    def expect(self, kind: type[Frozen], *, timeout_s: float = 60) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                message = self.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"rank {self.spec.rank} on {self.spec.machine}: no {kind.__name__} in "
                    f"{timeout_s} s; exit {self.process.poll()}; seen {self.seen[-5:]}"
                ) from None
            if isinstance(message, kind):
                return message


class RanksJob:
    """A job of one rank per machine, without agents, bus, detector or planner."""

    def __init__(self, program: list[str], *, slots: int, folder: Path, as_module: bool = False):
        self.layout = Layout(slots=slots)
        self.folder = folder
        self.program = program
        self.as_module = as_module
        self.everyone: list[Rank] = []
        self._sockets = tempfile.TemporaryDirectory(prefix="tm-")
        listeners = [self._listen() for _ in range(slots)]
        self.membership = Membership(
            epoch=1,
            layout=self.layout,
            members=tuple(self._member(f"m{i}", listener) for i, listener in enumerate(listeners)),
        )
        self.ranks = [
            self._spawn(f"m{i}", i, "active", listener) for i, listener in enumerate(listeners)
        ]

    @staticmethod
    def _listen() -> socket.socket:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        return listener

    @staticmethod
    def _member(machine: str, listener: socket.socket) -> Member:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        return Member(machine=machine, generation=0, endpoints=(endpoint,))

    def _spawn(self, machine: str, rank: int, role: str, listener: socket.socket) -> Rank:
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
                "local_rank": 0,
                "role": role,
                "membership": self.membership,
                "control": path,
                "listen_fd": listener.fileno(),
                "endpoint": f"127.0.0.1:{listener.getsockname()[1]}",
                "program": tuple(self.program),
                "as_module": self.as_module,
                "metrics_dir": str(self.folder),
            }
        )
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT],
            env={**os.environ, "SPEC": spec.model_dump_json(), "OMP_NUM_THREADS": "1"},
            pass_fds=[listener.fileno()],
        )
        member = Rank(spec=spec, process=process, listener=control)
        listener.close()
        threading.Thread(target=member.read, daemon=True).start()
        self.everyone.append(member)
        return member

    def standby(self, machine: str, slot: int) -> tuple[Rank, Member]:
        listener = self._listen()
        member = self._member(machine, listener)
        return self._spawn(machine, slot, "standby", listener), member

    def plan(self, kind: str, slot: int, joiner: Member, *, source: int | None = None) -> Plan:
        membership = self.membership.replace({slot: joiner})
        move = Move(
            slot=slot, leaver=self.membership.members[slot].machine, joiner=joiner.machine
        )
        return Plan.model_validate(
            {
                "id": f"m-{membership.epoch}",
                "job": "test",
                "kind": kind,
                "from_epoch": self.membership.epoch,
                "membership": membership,
                "moves": (move,),
                "sources": {slot: slot if source is None else source},
            }
        )

    def move(self, slot: int, standby: Rank, joiner: Member) -> Plan:
        """Tell everybody to prepare a planned move."""
        plan = self.plan("planned", slot, joiner)
        for rank in [*self.ranks, standby]:
            rank.tell(Prepare(plan=plan))
        return plan

    def recover(self, slot: int, standby: Rank, joiner: Member, *, source: int) -> Plan:
        """Tell the survivors and the joiner to recover."""
        plan = self.plan("failure", slot, joiner, source=source)
        for rank in [*(r for i, r in enumerate(self.ranks) if i != slot), standby]:
            rank.tell(Recover(plan=plan))
        return plan

    def took(self, plan: Plan, standby: Rank) -> None:
        """The joiner fills the slot from now on."""
        self.membership = plan.membership
        self.ranks[plan.moves[0].slot] = standby

    def finish(self, *, timeout_s: float = 120) -> list[dict[str, Any]]:
        """Wait for the end; each rank's final record."""
        for rank in self.ranks:
            status = rank.process.wait(timeout=timeout_s)
            assert status == 0, f"rank {rank.spec.rank} exited with {status}"
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
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGKILL)
            rank.process.wait()
            rank.listener.close()
            if rank.connection is not None:
                rank.connection.close()
        self._sockets.cleanup()

    def __enter__(self) -> RanksJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
