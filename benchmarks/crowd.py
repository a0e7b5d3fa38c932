"""Machines that only speak, some hundred of them in a process, and what they were told when."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final

from nats.aio.msg import Msg

import trainmover.bus.nats.bus as bus_module
from benchmarks.speakers import Cast, Speaker
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.nats.packing import ENCODING, unpack
from trainmover.commands import Command, Start, parse_command
from trainmover.errors import BusUnavailableError
from trainmover.job.topology import Membership
from trainmover.tracing import observe

CONTROL: Final = "scale.control"
"""Where the processes are told whom to kill, whom to add, and to end."""


@dataclass(slots=True)
class Heard:
    """When the bus stored commands of one verb for one plan, by its clock, in nanoseconds."""

    first_ns: int
    last_ns: int
    count: int = 1


@dataclass(slots=True)
class Ear:
    """Parses a command that goes to all machines once, and notes when it was stored."""

    heard: dict[str, Heard] = field(default_factory=dict)

    def take(self, message: Msg, addressee: str) -> Command:
        """In the place of the bus's own parser: here hundreds of machines share two cores."""
        del addressee
        command = _parse(unpack((message.headers or {}).get(ENCODING), message.data))
        plan = getattr(command, "plan", None)
        if plan is not None:
            at_ns = int(message.metadata.timestamp.timestamp() * 1e9)
            key = f"{plan.id}.{command.verb}"
            if (known := self.heard.get(key)) is None:
                self.heard[key] = Heard(at_ns, at_ns)
            else:
                known.first_ns, known.last_ns = (
                    min(known.first_ns, at_ns),
                    max(known.last_ns, at_ns),
                )
                known.count += 1
        return command


@functools.lru_cache(64)
def _parse(data: bytes) -> Command:
    head, start, membership = data.partition(b',"verb":"start",')
    if not start:
        return parse_command(data)
    own, _, membership = membership.partition(
        b',"membership":'
    )  # each machine is told the same ones
    said = json.loads(b"%s,%s}" % (head, own))
    return Start.model_construct(**said, membership=_membership(membership[:-1]))


@functools.lru_cache(4)
def _membership(data: bytes) -> Membership:
    return Membership.model_validate_json(data)


class Group:
    """The speakers of one process."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._speakers: dict[str, Speaker] = {}
        self._buses: list[NatsBus] = []

    def add(self, name: str, bus: NatsBus) -> None:
        """One more machine."""
        self._speakers[name] = speaker = Speaker(self._cast, name)
        self._tasks[name] = asyncio.create_task(speaker.run(bus), name=name)

    async def run(self) -> None:
        """Speak until told to end."""
        over = asyncio.Event()

        async def told(message: Msg) -> None:
            order = json.loads(message.data)
            over.set() if order.get("end") else self._carry_out(order)

        async def ready(message: Msg) -> None:
            migration = json.loads(message.data)["migration"]
            for speaker in self._speakers.values():
                speaker.ready(migration)

        async with contextlib.AsyncExitStack() as stack:
            own = await self._connect(stack, "group")
            await own.client.subscribe(CONTROL, cb=told)
            await own.client.subscribe(f"tm.v1.{self._cast.job}.migration.ready", cb=ready)
            names, sharing = self._cast.names, self._cast.sharing
            for start in range(0, len(names), sharing):
                self._buses.append(await self._connect(stack, names[start]))
                for name in names[start : start + sharing]:
                    self.add(name, self._buses[-1])
            await over.wait()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _connect(self, stack: contextlib.AsyncExitStack, name: str) -> NatsBus:
        bus = NatsBus(self._cast.url, name=name, connect_timeout=60.0)
        return await stack.enter_async_context(bus)

    def _carry_out(self, order: dict[str, str]) -> None:
        if (name := order.get("kill")) is not None:
            if name in self._tasks:
                self._speakers.pop(name)
                self._tasks.pop(name).cancel()
            for speaker in self._speakers.values():
                speaker.lost(name)
        if (name := order.get("add")) is not None and order.get("beside") in self._speakers:
            self.add(name, self._buses[-1])


def speak(cast: Cast, pipe: Connection) -> None:
    """Body of a process: speak until told to end, then say when commands were stored."""
    os.nice(2)  # what is measured goes first
    observe.configure(service="speakers", level="error")
    ear = Ear()
    bus_module._parse_command = ear.take
    with contextlib.suppress(BusUnavailableError):
        asyncio.run(Group(cast).run())
    pipe.send({key: (one.first_ns, one.last_ns, one.count) for key, one in ear.heard.items()})


def split(names: list[str], parts: int) -> Iterator[tuple[str, ...]]:
    """Names in so many parts, each next to its neighbours."""
    size = -(-len(names) // parts)
    for start in range(0, len(names), size):
        yield tuple(names[start : start + size])
