"""Planner and detector: their real cores with shells that die, freeze, lose and repeat."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

import numpy as np
from tests.simulation.scene import Scene

from trainmover.detection import CollectiveWindow, Evidence, Finding
from trainmover.detection.guard import Guarded
from trainmover.events.incident import IncidentOpened
from trainmover.job.topology import Frozen, Membership
from trainmover.policy import Policy
from trainmover.policy.model import SLOWEST
from trainmover.telemetry.records import RECORD, Batch
from trainmover.testing.simulation import SimGate, SimOutbox, SimProcess, StoredFact
from trainmover_detector.backlog import Backlog
from trainmover_detector.core import DetectorCore
from trainmover_detector.detectors.liveness import LivenessDetector
from trainmover_planner import core
from trainmover_planner.state.effects import (
    Command,
    Event,
    Fact,
    PublishFact,
    Reply,
    Request,
    SendCommand,
    Tick,
)
from trainmover_planner.state.state import SOURCE, State

__all__ = ["SimDetector", "SimPlanner"]

_EMPTY: Final = np.empty(0, RECORD)
_TICK_S: Final = 0.2


class SimPlanner:
    """The planner, across its restarts.

    Args:
        scene: Where it lives.
        policy: What is declared.
    """

    def __init__(self, scene: Scene, policy: Policy) -> None:
        self.scene, self.policy = scene, policy
        self.process = SimProcess(scene.sim)
        self.process.die()
        self.state: State = core.initial(scene.job, policy)
        self.ready = False
        self.replies: list[Frozen] = []
        self._askers: dict[str, Callable[[Frozen], object]] = {}
        self._starts = itertools.count()
        self._asked = itertools.count()

    def start(self) -> None:
        """A fresh process that reads what is stored."""
        self.process = SimProcess(self.scene.sim)
        self.ready = False
        self._started = next(self._starts)
        self._facts = SimOutbox(self.process, self.scene.bus, "planner")
        self._machines: dict[str, SimOutbox] = {}
        self.process.after(self.scene.sim.between(0.05, 0.6), self._catch_up, self.process)

    def kill(self) -> None:
        """It dies; what did not leave is lost."""
        self.scene.sim.note("planner", "is killed")
        self.process.die()
        self.ready = False

    def _catch_up(self, process: SimProcess) -> None:
        bus, sim = self.scene.bus, self.scene.sim
        if "planner" in bus.cut:
            process.after(0.5, self._catch_up, process)
            return
        state = core.initial(self.scene.job, self.policy)
        for stored in bus.kept():
            state = core.fold(state, _fact(stored), stored.at_s)
        self.state = state
        bus.follow(process, "planner", self._hear, skip=len(bus.facts))
        self._stepped_s = sim.now_s
        incarnation = self._started if state.membership is not None else 1
        self.state, commands = core.resume(self.state, sim.now_s, incarnation=max(1, incarnation))
        sim.note("planner", "is ready, incarnation %d", self._started)
        self.ready = True
        self._carry_out(commands)
        self._plan_wake()

    def _hear(self, stored: StoredFact) -> None:
        if stored.source != SOURCE:
            self._step(_fact(stored))

    def ask(
        self, verb: str, request: Frozen, answer: Callable[[Frozen], object] | None = None
    ) -> None:
        """Somebody's request, which may get lost; ``answer`` gets the reply."""
        call = (self._asked_for, verb, request, answer)
        self.scene.bus.core("operator", self.process, "planner", *call)

    def _asked_for(
        self, verb: str, request: Frozen, answer: Callable[[Frozen], object] | None
    ) -> None:
        if self.ready:
            number = f"r-{next(self._asked)}"
            self.scene.sim.note("operator", "asks %s %s", verb, request)
            if answer is not None:
                self._askers[number] = answer
            self._step(Request(number, verb, request.model_dump_json().encode()))

    def _tick(self, stepped_s: float) -> None:
        if stepped_s == self._stepped_s:
            self._step(Tick())

    def _plan_wake(self) -> None:
        wake_s = core.next_wake_s(self.state)
        if wake_s is not None:
            delay_s = max(wake_s - self.scene.sim.now_s, 0.0) + 0.001
            self.process.after(delay_s, self._tick, self._stepped_s)

    def _step(self, event: Event) -> None:
        now_s = self.scene.sim.now_s
        if now_s <= self._stepped_s:
            now_s = self._stepped_s + 1e-9
        self._stepped_s = now_s
        self.state, commands = core.step(self.state, event, self._stepped_s)
        self._carry_out(commands)
        self._plan_wake()

    def _carry_out(self, commands: tuple[Command, ...]) -> None:
        """As ``trainmover_planner.outbox``: commands at once, or when the facts before are stored.

        Commands for one machine keep their order.
        """
        gates = [
            SimGate() if isinstance(one, SendCommand) and not one.urgent else None
            for one in commands
        ]
        for command, gate in zip(commands, gates, strict=True):
            if isinstance(command, SendCommand):
                self._send(command, gate)
        for command, gate in zip(commands, gates, strict=True):
            match command:
                case PublishFact():
                    self._publish(command)
                case SendCommand() if gate is not None:
                    self._facts.put(gate.open)
                case Reply(request=number, body=body):
                    self.replies.append(body)
                    if (answer := self._askers.pop(number, None)) is not None:
                        answer(body)
                    self.scene.sim.note("planner", "answers %s", body)
                case _:
                    pass

    def _send(self, item: SendCommand, gate: SimGate | None) -> None:
        scene = self.scene
        outbox = self._machines.get(item.machine)
        if outbox is None:
            outbox = self._machines[item.machine] = SimOutbox(self.process, scene.bus, "planner")

        def arrive() -> None:
            scene.checks.command(item.machine, item.command)
            scene.bus.enqueue(item.machine, item.command, id=item.id)

        outbox.put(arrive, gate=gate)

    def _publish(self, item: PublishFact) -> None:
        bus = self.scene.bus
        stored = StoredFact(self.scene.sim.now_s, SOURCE, item.id, item.payload, item.trace)
        self.scene.sim.note("planner", "says %s", item.id)
        self._facts.put(lambda: bus.store(stored))


class SlownessOracle:
    """A detector that is told who is slow."""

    api_version: ClassVar[int] = 1

    def __init__(self, slow: list[str]) -> None:
        self._slow = slow

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        return ()

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        return ()

    def membership_changed(self, membership: Membership) -> None:
        return None

    def tick(self, now_s: float) -> Iterable[Finding]:
        return [
            Finding("straggler", name, None, 0.9, f"{name} is slow", advice="move")
            for name in self._slow
        ]


class PaceOracle:
    """A detector that is told how late each machine is, and names the slowest once an interval.

    Args:
        paces: How late each machine is, as a share of a step; nobody is named while it is empty.
    """

    api_version: ClassVar[int] = 1
    EVERY_S: ClassVar[float] = 4.0

    def __init__(self, paces: Mapping[str, float]) -> None:
        self._paces = paces
        self._members: tuple[str, ...] = ()
        self._due_s = 0.0
        self._named = ""

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        return ()

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        return ()

    def membership_changed(self, membership: Membership) -> None:
        self._members = tuple(member.machine for member in membership.members)

    def tick(self, now_s: float) -> Iterable[Finding]:
        if not self._paces or not self._members or now_s < self._due_s:
            return ()
        self._due_s = now_s + self.EVERY_S
        slowest = max(self._members, key=lambda name: self._paces.get(name, 0.0))
        before, self._named = self._named, slowest
        found = [Finding(SLOWEST, before, None, 0.9, "over", closed=True)] if before else []
        late = {"lateness": self._paces.get(slowest, 0.0)}
        words = f"{slowest} is the slowest"
        # The finding comes last: the same machine may be named again.
        return [*found, Finding(SLOWEST, slowest, None, 0.9, words, late, advice="move")]


class SimDetector:
    """The detector, across its restarts.

    Args:
        scene: Where it lives.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.slow: list[str] = []
        self.paces: dict[str, float] = {}
        self.process = SimProcess(scene.sim)
        self.process.die()
        self._starts = itertools.count()
        self._core: DetectorCore | None = None
        scene.hear.append(self._telemetry)

    def start(self) -> None:
        """A fresh process that reads what is stored."""
        self.process = SimProcess(self.scene.sim)
        self._core = None
        self._started = next(self._starts)
        self._said = itertools.count()
        self._outbox = SimOutbox(self.process, self.scene.bus, "detector")
        self.process.after(self.scene.sim.between(0.05, 0.6), self._catch_up, self.process)

    def kill(self) -> None:
        """It dies; what it did not publish is lost."""
        self.scene.sim.note("detector", "is killed")
        self.process.die()

    def _catch_up(self, process: SimProcess) -> None:
        bus, sim = self.scene.bus, self.scene.sim
        if "detector" in bus.cut:
            process.after(0.5, self._catch_up, process)
            return
        detectors = [
            Guarded("liveness", LivenessDetector(), clock=_no_time),
            Guarded("slowness", SlownessOracle(self.slow), clock=_no_time),
            Guarded("pace", PaceOracle(self.paces), clock=_no_time),
        ]
        self._core = DetectorCore(detectors)
        backlog = Backlog(self._core)
        for stored in bus.kept():
            backlog.take(stored.payload, sim.now_s)
        bus.follow(process, "detector", self._hear, skip=len(bus.facts))
        self._say(backlog.rest())
        self._tick()

    def _hear(self, stored: StoredFact) -> None:
        if stored.source != "/detector" and self._core is not None:
            self._say(self._core.on_fact(stored.payload, self.scene.sim.now_s))

    def _telemetry(self, machine: str, generation: int, epoch: int) -> None:
        batch = Batch(self.scene.job, machine, generation, epoch, _EMPTY)
        self.scene.bus.core(machine, self.process, "detector", self._take, batch)

    def _take(self, batch: Batch) -> None:
        if self._core is not None:
            self._say(self._core.on_batch(batch, self.scene.sim.now_s))

    def _tick(self) -> None:
        assert self._core is not None
        self._say(self._core.tick(self.scene.sim.now_s))
        self.process.after(_TICK_S, self._tick)

    def _say(self, payloads: Iterable[Frozen]) -> None:
        bus, sim = self.scene.bus, self.scene.sim
        for payload in payloads:
            if isinstance(payload, IncidentOpened):
                sim.note("detector", "%s %s: %s", payload.id, payload.kind, payload.summary)
            id = f"{self._started}.{next(self._said)}"
            stored = StoredFact(sim.now_s, "/detector", id, payload)
            self._outbox.put(lambda stored=stored: bus.store(stored))  # type: ignore[misc]


def _fact(stored: StoredFact) -> Fact:
    trace: Mapping[str, str] = stored.trace
    return Fact(payload=stored.payload, source=stored.source, id=stored.id, trace=trace)


def _no_time() -> float:
    return 0.0
