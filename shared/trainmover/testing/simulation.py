"""A deterministic world for protocol tests: virtual time, processes that die or freeze, a bad bus.

Everything random comes from one seed, so that a run can be repeated and read. The bus keeps the
promises of the real one and no others: facts are stored once and read in order, but late; commands
come at least once; core messages may get lost; whoever is cut off waits and tries again.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trainmover.commands import Command
from trainmover.events.catalog import type_of
from trainmover.job.topology import Frozen

__all__ = ["SimBus", "SimGate", "SimOutbox", "SimProcess", "Simulation", "StoredFact", "Weather"]

_RETRY_S: Final = 0.3
_KEPT_S: Final = 2.0


class Simulation:
    """Virtual time and everything that is to happen.

    Args:
        seed: Decides everything random.
        tracing: Keep notes for ``trace``.

    Attributes:
        now_s: The time, in seconds.
        random: The only source of randomness.
    """

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.now_s = 0.0
        self.random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.tracing = tracing
        self._notes: list[tuple[float, str, str]] = []
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serial = 0

    def after(self, delay_s: float, call: Callable[..., object], *args: Any) -> None:
        """Call ``call(*args)`` in ``delay_s`` seconds."""
        self._serial += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._serial, call, args))

    def run(self, *, until_s: float, done: Callable[[], bool] | None = None) -> bool:
        """Let time pass until ``until_s``, or until ``done`` holds (asked after each event).

        Returns:
            Whether ``done`` held.
        """
        queue = self._queue
        while queue and queue[0][0] <= until_s:
            self.now_s, _, call, args = heapq.heappop(queue)
            call(*args)
            if done is not None and done():
                return True
        self.now_s = until_s
        return done is not None and done()

    def between(self, low: float, high: float) -> float:
        """A random number of seconds."""
        return low + (high - low) * self.random.random()

    def chance(self, probability: float) -> bool:
        """Whether something happens."""
        return self.random.random() < probability

    def note(self, actor: str, text: str, *args: object) -> None:
        """Keep a line for the trace; formatted only when somebody wants to read it."""
        if self.tracing:
            self._notes.append((self.now_s, actor, text % args if args else text))

    def trace(self) -> str:
        """Everything that was noted, one line each: seconds, who, what."""
        return "\n".join(f"{at_s:9.3f}  {who:<12} {what}" for at_s, who, what in self._notes)


class SimProcess:
    """Something that can die, freeze and thaw; what reaches it while frozen waits.

    Args:
        sim: The world it lives in.
    """

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.alive = True
        self.frozen = False
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call(self, method: Callable[..., object], *args: Any) -> None:
        """Have it do something now, once it thaws, or never when it is dead."""
        if not self.alive:
            return
        if self.frozen or self._waiting:
            self._waiting.append((method, args))
        else:
            method(*args)

    def after(self, delay_s: float, method: Callable[..., object], *args: Any) -> None:
        """The same in ``delay_s`` seconds."""
        self.sim.after(delay_s, self.call, method, *args)

    def die(self) -> None:
        """Never do anything again."""
        self.alive = False
        self._waiting.clear()

    def freeze(self) -> None:
        """As by SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """As by SIGCONT: everything that waited happens now, in order."""
        self.frozen = False
        while self._waiting and self.alive and not self.frozen:
            method, args = self._waiting.popleft()
            method(*args)


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad the bus is.

    Attributes:
        delay_s: Usual latency, (least, most) seconds.
        slow: How often a message takes up to ``slow_s`` instead.
        slow_s: Longest latency of a slow message, seconds.
        twice: How often a command is delivered again after it was carried out.
        lost: How often a message that nobody stores is lost.
    """

    delay_s: tuple[float, float] = (0.0005, 0.004)
    slow: float = 0.02
    slow_s: float = 0.5
    twice: float = 0.05
    lost: float = 0.05

    def latency_s(self, sim: Simulation) -> float:
        """Of one message."""
        if sim.chance(self.slow):
            return sim.between(self.delay_s[1], self.slow_s)
        return sim.between(*self.delay_s)


@dataclass(frozen=True, slots=True)
class StoredFact:
    """A fact in the stream; ``at_s`` is the time its author gave it."""

    at_s: float
    source: str
    id: str
    payload: Frozen
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Reader:
    process: SimProcess
    client: str
    handle: Callable[[StoredFact], object]
    next: int
    ready_s: float = 0.0


@dataclass(slots=True)
class _Queue:
    commands: list[Command] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    next: int = 0
    owner: tuple[SimProcess, Callable[[Command], object]] | None = None
    busy: bool = False


class SimBus:
    """The bus of a simulated job: a stream of facts, a queue of commands for each machine.

    Args:
        sim: The world.
        weather: How bad it is.

    Attributes:
        cut: Clients that cannot reach it now.
        facts: The stream.
    """

    def __init__(self, sim: Simulation, weather: Weather) -> None:
        self.sim = sim
        self.weather = weather
        self.cut: set[str] = set()
        self.facts: list[StoredFact] = []
        self.stored: list[Callable[[StoredFact], object]] = []
        self._ids: set[tuple[str, str]] = set()
        self._readers: list[_Reader] = []
        self._queues: dict[str, _Queue] = {}

    def heal(self, client: str) -> None:
        """``client`` reaches the bus again."""
        self.cut.discard(client)
        for reader in self._readers:
            if reader.client == client:
                self._hand_out(reader)
        if client in self._queues:
            self._deliver(client)

    # -- facts -----------------------------------------------------------------------------------

    def store(self, fact: StoredFact) -> None:
        """A fact arrived; the same id of the same author is kept once."""
        if (fact.source, fact.id) in self._ids:
            return
        self._ids.add((fact.source, fact.id))
        self.facts.append(fact)
        for look in self.stored:
            look(fact)
        for reader in self._readers:
            if reader.next == len(self.facts) - 1:
                self._hand_out(reader)

    def kept(self) -> list[StoredFact]:
        """What somebody finds who begins with the first fact now.

        What a real bus forgets after a minute is forgotten sooner: few simulated jobs last longer.
        """
        return [
            fact
            for fact in self.facts
            if type_of(fact.payload).kept_s is None or fact.at_s > self.sim.now_s - _KEPT_S
        ]

    def follow(
        self, process: SimProcess, client: str, handle: Callable[[StoredFact], object], *, skip: int
    ) -> None:
        """Have ``process`` read all facts but the first ``skip``, in order, as they come."""
        self._readers = [one for one in self._readers if one.process.alive]
        reader = _Reader(process, client, handle, skip)
        self._readers.append(reader)
        self._hand_out(reader)

    def _hand_out(self, reader: _Reader) -> None:
        while (
            reader.process.alive and reader.client not in self.cut and reader.next < len(self.facts)
        ):
            fact = self.facts[reader.next]
            reader.next += 1
            due_s = self.sim.now_s + self.weather.latency_s(self.sim)
            reader.ready_s = max(reader.ready_s, due_s)
            reader.process.after(reader.ready_s - self.sim.now_s, reader.handle, fact)

    # -- commands --------------------------------------------------------------------------------

    def enqueue(self, machine: str, command: Command, *, id: str) -> None:
        """A command arrived; the same id is kept once."""
        queue = self._queues.setdefault(machine, _Queue())
        if id not in queue.ids:
            queue.ids.add(id)
            queue.commands.append(command)
            self._deliver(machine)

    def obey(self, process: SimProcess, machine: str, handle: Callable[[Command], object]) -> None:
        """Have ``process`` carry out what is queued for ``machine``, from the oldest open one."""
        queue = self._queues.setdefault(machine, _Queue())
        queue.owner, queue.busy = (process, handle), False
        self._deliver(machine)

    def _deliver(self, machine: str) -> None:
        queue = self._queues[machine]
        if queue.owner is None or queue.busy or queue.next >= len(queue.commands):
            return
        process, handle = queue.owner
        if not process.alive or machine in self.cut:
            return
        queue.busy = True
        command = queue.commands[queue.next]

        def arrive() -> None:
            if queue.owner != (process, handle):
                return
            queue.busy = False
            if machine in self.cut:
                return
            queue.next += 1
            handle(command)
            if self.sim.chance(self.weather.twice):  # its acknowledgement was lost
                process.after(self.sim.between(0.2, 5.0), handle, command)
            self._deliver(machine)

        process.after(self.weather.latency_s(self.sim), arrive)

    # -- what nobody stores ----------------------------------------------------------------------

    def core(self, sender: str, process: SimProcess, receiver: str, *call: Any) -> None:
        """A message that may get lost on its way to ``process``."""
        if sender in self.cut or receiver in self.cut or self.sim.chance(self.weather.lost):
            return
        process.after(self.weather.latency_s(self.sim), *call)


class SimGate:
    """Closed at first; what waits behind it goes on once it opens."""

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: list[Callable[[], object]] = []

    def open(self) -> None:
        """Let everything through from now on."""
        self.is_open = True
        for go_on in self._waiting:
            go_on()

    def wait(self, go_on: Callable[[], object]) -> None:
        """Have ``go_on`` called when it opens."""
        self._waiting.append(go_on)


class SimOutbox:
    """Messages of one process on their way, in order; each waits until the one before is stored.

    Args:
        process: Whose they are: what did not leave when it dies is lost.
        bus: Where they go.
        client: Its name at the bus.
    """

    def __init__(self, process: SimProcess, bus: SimBus, client: str) -> None:
        self._process = process
        self._bus = bus
        self._client = client
        self._waiting: deque[tuple[Callable[[], object], SimGate | None]] = deque()
        self._busy = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(
        self, deliver: Callable[[], object], *, urgent: bool = False, gate: SimGate | None = None
    ) -> None:
        """Queue something that the bus is to take.

        Args:
            deliver: Called when it arrives.
            urgent: It overtakes all that wait.
            gate: It, and all behind it, wait until this opens.
        """
        if urgent:
            self._waiting.appendleft((deliver, gate))
        else:
            self._waiting.append((deliver, gate))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._waiting or not self._process.alive:
            return
        deliver, gate = self._waiting[0]
        if gate is not None and not gate.is_open:
            gate.wait(self._next)
            return
        self._busy = True
        self._try(deliver)

    def _try(self, deliver: Callable[[], object]) -> None:
        sim, bus = self._bus.sim, self._bus
        if self._client in bus.cut:
            self._process.after(_RETRY_S, self._try, deliver)
            return

        def arrive() -> None:  # on the wire: it arrives even if its sender is dead by now
            if self._client in bus.cut:
                self._process.after(_RETRY_S, self._try, deliver)
                return
            deliver()
            self._process.after(bus.weather.latency_s(sim), self._acknowledged, deliver)

        sim.after(bus.weather.latency_s(sim), arrive)

    def _acknowledged(self, deliver: Callable[[], object]) -> None:
        if self._client in self._bus.cut:  # unknown whether it arrived: say it again
            self._process.after(_RETRY_S, self._try, deliver)
            return
        for index, (waiting, _) in enumerate(self._waiting):
            if waiting is deliver:
                del self._waiting[index]
                break
        self._busy = False
        self._next()
