"""A worker that does what a test tells it over a second socket; runs inside the fork server."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from trainmover.telemetry.records import Flag
from trainmover_executor.clock.memory import ClockMemory
from trainmover_executor.clock.writer import CollectiveClock
from trainmover_executor.messages.worker import FrameReader, Hello, WorkerSpec, pack


def main(spec: WorkerSpec) -> NoReturn:
    """Report to the director named by the environment, then obey."""
    listener = socket.socket(fileno=spec.listen_fd)
    director = socket.socket(socket.AF_UNIX)
    director.connect(os.environ["TM_DIRECTOR"])
    agent = socket.socket(socket.AF_UNIX)
    agent.connect(spec.control)
    _tell(
        director,
        pid=os.getpid(),
        server=os.getppid(),
        rank=spec.rank,
        role=spec.role,
        generation=spec.generation,
        listens=listener.getsockname()[1],
        policy=os.sched_getscheduler(0),
        group=os.getpgid(0),
        threads=len(list(Path("/proc/self/task").iterdir())),
        fds=sorted(_open_sockets()),
    )
    frames, lines = FrameReader(), b""
    while True:
        readable, _, _ = select.select([director, agent], [], [])
        if agent in readable:
            data = agent.recv(1 << 16)
            if not data:
                os._exit(75)
            for header, _ in frames.feed(data):
                _tell(director, heard=header)
        if director in readable:
            data = director.recv(1 << 16)
            if not data:
                os._exit(76)
            *whole, lines = (lines + data).split(b"\n")
            for line in whole:
                _obey(json.loads(line), agent=agent, spec=spec)


def _obey(order: dict[str, Any], *, agent: socket.socket, spec: WorkerSpec) -> None:
    match order:
        case {"do": "hello"}:
            agent.sendall(pack(Hello(rank=spec.rank, pid=os.getpid())))
        case {"do": "frame", "data": data}:
            agent.sendall(bytes.fromhex(data))
        case {"do": "clock", "steps": steps, **more}:
            _work(spec, steps, commit=bool(more.get("commit")))
        case {"do": "exit", "code": code}:
            sys.exit(code)
        case {"do": "raise", "text": text}:
            raise RuntimeError(text)
        case {"do": "print", "text": text, "on": stream}:
            print(text, file=getattr(sys, stream))
        case {"do": "deaf"}:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            agent.sendall(pack(Hello(rank=spec.rank, pid=os.getpid())))
        case {"do": "signal", "number": number}:
            os.kill(os.getpid(), number)
        case {"do": "fork"}:
            _fork()


def _fork() -> None:
    if os.fork() == 0:
        director = socket.socket(socket.AF_UNIX)
        director.connect(os.environ["TM_DIRECTOR"])
        _tell(director, grandchild=os.getpid())
        signal.pause()


def _work(spec: WorkerSpec, steps: int, *, commit: bool) -> None:
    clock = CollectiveClock(rank=spec.rank, memory=ClockMemory.attach(spec.clock_fd))
    clock.enter_epoch(spec.membership.epoch)
    group = clock.group("g")
    for step in range(steps):
        clock.step = step
        group.leave(group.enter("barrier", size=0))
        if commit:
            took = {"duration_ns": 1, "loader_ns": 0, "outside_ns": 0, "cpu_ns": 0}
            clock.committed(step=step, flags=Flag(0), loss=0.0, checksum=0, **took)
    clock.beat()


def _open_sockets() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if not target.startswith("/"):
            found.append(target.partition(":")[0])
    return found


def _tell(director: socket.socket, **message: Any) -> None:
    director.sendall(json.dumps(message).encode() + b"\n")


def broken(spec: WorkerSpec) -> NoReturn:
    """A worker that fails before it says anything."""
    raise RuntimeError(f"rank {spec.rank} is broken")
