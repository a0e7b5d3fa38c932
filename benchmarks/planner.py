"""How many ranks one planner and one detector hold: a synthetic job through their real cores.

    python -m benchmarks.planner --json
    python -m benchmarks.planner --ranks 1024 8192 --json

Seconds are processor seconds of one core, so a busy host does not count. Each size has a process
of its own, so that its peak of memory is its own. Facts are made before the clock starts, as the
bus would have made them; only ``resume_s`` holds their decoding, because there are so many at once.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import numpy as np

from benchmarks.detection_load import Fleet as Load
from benchmarks.detection_simulated import detectors
from trainmover.detection.guard import Guarded
from trainmover.events import catalog, executor, incident, machine
from trainmover.events.envelope import Envelope, decode, encode
from trainmover.events.migration import JobFormed
from trainmover.job.topology import Frozen, Machine
from trainmover.telemetry.records import (
    HEAD,
    OPS,
    PULSE,
    RECORD,
    Batch,
    Sections,
    decode_batch,
    encode_batch,
)
from trainmover_detector.core import DetectorCore
from trainmover_planner import core
from trainmover_planner.memory import Attic
from trainmover_planner.state.effects import Command, Fact, PublishFact, SendCommand
from trainmover_planner.state.state import State

RANKS: Final = (1_024, 8_192, 65_536, 1_048_576)
DETECTOR_RANKS: Final = (1_024, 8_192, 65_536)
RANKS_PER_MACHINE: Final = 8
SPARE: Final = 4
SECONDS: Final = 5
PLANS: Final = 7
_HEALTHY_S: Final = 30
_SICK_S: Final = 6
JOB: Final = "size"


class Fleet:
    """What the machines of a job say; two replicas of each state, four standbys.

    Args:
        ranks: Ranks of the job.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.machines = ranks // RANKS_PER_MACHINE

    def endpoints(self, name: str, base: int) -> tuple[str, ...]:
        """Where the processes of a machine listen."""
        return tuple(f"{name}.cluster.local:{base + local}" for local in range(RANKS_PER_MACHINE))

    def registered(self) -> Iterator[Frozen]:
        """All machines, the later standbys among them."""
        for number in range(self.machines + SPARE):
            name = f"node-{number}"
            yield machine.MachineRegistered(
                machine=Machine(
                    name=name,
                    generation=0,
                    endpoints=self.endpoints(name, 30_000),
                    labels={"leaf": f"l{number // 16}", "pod": f"p{number // 256}"},
                ),
                nnodes_min=self.machines,
                nnodes_max=self.machines + SPARE,
                pid=1,
                host=name,
            )

    def warmed(self) -> Iterator[Frozen]:
        """Each standby is ready for every fourth slot: each slot has one that is."""
        for number in range(SPARE):
            name, slots = f"node-{self.machines + number}", range(number, self.machines, SPARE)
            at = self.endpoints(name, 31_000)
            yield machine.MachineWarming(
                machine=name, generation=0, endpoints=dict.fromkeys(slots, at)
            )
            for slot in slots:
                yield machine.MachineReady(
                    machine=name, generation=0, slot=slot, shadow_iterations=3, warm_s=1.0
                )

    def layouts(self) -> Iterator[Frozen]:
        """Each rank has one replica, half of the job away."""
        half = self.ranks // 2
        for rank in range(self.ranks):
            name = f"node-{rank // RANKS_PER_MACHINE}"
            alike = executor.Span.of((rank, (rank + half) % self.ranks))
            yield executor.JobLayoutKnown(machine=name, rank=rank, alike=alike)

    def costs(self) -> Iterator[Frozen]:
        """Each rank says how large its state is."""
        for rank in range(self.ranks):
            name = f"node-{rank // RANKS_PER_MACHINE}"
            yield executor.WorkerCosts(machine=name, rank=rank, vote="front", state_bytes=10**10)

    def resumed(self, migration: str) -> Iterator[Frozen]:
        """Each rank says how long it paused for a migration; the later, the longer."""
        for rank in range(self.ranks):
            yield executor.StepResumed(
                machine=f"node-{rank // RANKS_PER_MACHINE}",
                rank=rank,
                epoch=1,
                step=9,
                pause_s=rank * 1e-6,
                step_s=1.0,
                steps_redone=0,
                migration=migration,
            )

    def second(self, step: int) -> list[Frozen]:
        """What is said while nothing happens: how far each machine is."""
        return [
            executor.StepProgress(
                machine=f"node-{number}",
                rank=number * RANKS_PER_MACHINE,
                epoch=1,
                step=step,
                step_s=1.0,
                loss=2.0,
            )
            for number in range(self.machines)
        ]

    def slow(self, slot: int) -> Frozen:
        """The detector finds a straggler, and says how late it is."""
        late = {"lateness": 0.2}
        return self._found(slot, kind="straggler", confidence=0.9, evidence=late, advice="move")

    def failed(self, slot: int) -> Frozen:
        """The detector names a machine."""
        return self._found(slot, kind="machine_failed", confidence=1.0, advice="recover")

    def _found(self, slot: int, *, kind: str, **said: Any) -> Frozen:
        name = f"node-{slot}"
        return incident.IncidentOpened(
            id="i-0001",
            kind=kind,
            machine=name,
            slot=slot,
            epoch=1,
            summary=f"{name}: {kind}",
            detector="benchmark",
            **said,
        )


def said(payloads: Iterable[Frozen]) -> list[Fact]:
    """Facts as the planner's shell hands them to the core."""
    return [Fact(payload, _source(payload), str(at)) for at, payload in enumerate(payloads)]


def _source(payload: Frozen) -> str:
    speaker = catalog.type_of(payload).machine_of(payload)
    return "/detector" if speaker is None else f"/machine/{speaker}"


class Life:
    """A planner from the first machine on.

    Args:
        ranks: Ranks of the job.
    """

    def __init__(self, ranks: int) -> None:
        self.fleet = Fleet(ranks)
        self.state: State = core.initial(JOB)
        self.now_s = 1_000.0
        self.own: list[PublishFact] = []
        self._attic = Attic()

    def hear(self, facts: Iterable[Fact]) -> float:
        """Processor seconds that these facts take, one after another."""
        state, now_s, own = self.state, self.now_s, self.own
        began = time.process_time()
        for fact in facts:
            now_s += 1e-6
            state, commands = core.step(state, fact, now_s)
            if commands:
                own += [one for one in commands if isinstance(one, PublishFact)]
        took = time.process_time() - began
        self.state, self.now_s = state, now_s
        return took

    def form(self) -> float:
        """All machines register, standbys become ready, each rank says what it holds."""
        fleet = self.fleet
        facts = said([*fleet.registered(), *fleet.warmed(), *fleet.layouts(), *fleet.costs()])
        took = self.hear(facts)
        if self.state.membership is None:
            raise RuntimeError("the job did not form")
        self._attic.settle(2 * self.fleet.ranks)  # as the planner's shell does now and then
        return took

    def seconds(self) -> float:
        """Median second in which nothing happens."""
        return statistics.median(
            self.hear(said(self.fleet.second(step))) for step in range(SECONDS)
        )

    def resumed_s(self) -> float:
        """Time to take in what each rank says of its pause for a planned move."""
        before = self.state
        fact = Fact(self.fleet.slow(1), "/detector", "i-0")
        self.state, commands = core.step(self.state, fact, self.now_s + 1.0)
        _check_plan(commands, self.fleet.machines)
        (id,) = self.state.open
        took = self.hear(said(self.fleet.resumed(id)))
        (pause,) = self.state.lately.pauses
        if pause != (id, (self.fleet.ranks - 1) * 1e-6):
            raise RuntimeError(f"the longest pause is not {pause}")
        self.state = replace(before, lately=replace(before.lately, pauses=(("m-0", 0.2),) * 32))
        return took

    def plan_ms(self, incident: Callable[[int], Frozen]) -> float:
        """Median time to plan for a machine that leaves, up to the commands for all others."""
        took = []
        for number in range(PLANS):
            slot = (number * 37 + 1) % self.fleet.machines
            fact = Fact(incident(slot), "/detector", f"i-{number}")
            began = time.process_time()
            _, commands = core.step(self.state, fact, self.now_s + 1.0)
            took.append(time.process_time() - began)
            _check_plan(commands, self.fleet.machines)
        return statistics.median(took) * 1e3

    def stream(self) -> Iterator[tuple[str, dict[str, str], bytes]]:
        """What the bus keeps of such a job, an hour later: progress for as long as it is kept."""
        for payload in self.fleet.registered():
            yield encoded(payload, _source(payload))
        for fact in self.own:
            yield encoded(fact.payload, "/planner")
        for payload in (*self.fleet.warmed(), *self.fleet.layouts(), *self.fleet.costs()):
            yield encoded(payload, _source(payload))
        second = self.fleet.second(9)
        kept_s = catalog.type_of(second[0]).kept_s or 0
        messages = [encoded(one, _source(one)) for one in second]
        for _ in range(kept_s):
            yield from messages


def _check_plan(commands: tuple[Command, ...], machines: int) -> None:
    told = sum(isinstance(one, SendCommand) for one in commands)
    if told < machines:
        raise RuntimeError(f"only {told} of {machines} machines were told of the plan")


_HEADERS: dict[type[Frozen], dict[str, str]] = {}


def encoded(payload: Frozen, source: str) -> tuple[str, dict[str, str], bytes]:
    """Subject, headers and body of a fact; the headers of one kind are made once."""
    envelope = Envelope("x", source, JOB, datetime.now(UTC), payload)
    kind = catalog.type_of(payload)
    if kind.model not in _HEADERS:
        _HEADERS[kind.model], _ = encode(envelope)
    subject = kind.subject(JOB, machine=kind.machine_of(payload))
    headers = {**_HEADERS[kind.model], "ce-source": source}
    return subject, headers, payload.model_dump_json().encode()


def resume(stream: Iterable[tuple[str, dict[str, str], bytes]], *, now_s: float) -> float:
    """Processor seconds from the first stored fact to a planner that is ready."""
    state, took = core.initial(JOB), 0.0
    batch = []
    for message in (*stream, None):
        if message is not None:
            batch.append(message)
        if len(batch) < 10_000 and message is not None:
            continue
        began = time.process_time()
        for subject, headers, data in batch:
            event = decode(subject, headers, data)
            state = core.fold(state, Fact(event.payload, event.source, event.id), now_s)
        took += time.process_time() - began
        batch = []
    began = time.process_time()
    state, _ = core.resume(state, now_s)
    if state.membership is None:
        raise RuntimeError("the planner that started over knows no job")
    return took + time.process_time() - began


def row(ranks: int) -> dict[str, Any]:
    """All figures of one size."""
    before = _peak_bytes()
    life = Life(ranks)
    form_s, second_s, resumed_s = life.form(), life.seconds(), life.resumed_s()
    plan_ms, move_ms = life.plan_ms(life.fleet.failed), life.plan_ms(life.fleet.slow)
    peak = _peak_bytes() - before
    resume_s = resume(life.stream(), now_s=life.now_s)
    return {
        "ranks": ranks,
        "machines": life.fleet.machines,
        "form_s": round(form_s, 4),
        "second_of_life_s": round(second_s, 5),
        "plan_ms": round(plan_ms, 2),
        "move_ms": round(move_ms, 2),
        "resumed_s": round(resumed_s, 4),
        "resume_s": round(resume_s, 3),
        "peak_bytes": peak,
    }


def watched(ranks: int, sick: int) -> dict[str, Any]:
    """A second of a job for the detector: telemetry, progress and ticks; while ranks are frozen.

    Args:
        ranks: Ranks of the job.
        sick: So many of them stopped; all others wait for them in one collective.
    """
    guarded = [Guarded(name, detector) for name, detector in detectors().items()]
    watch = DetectorCore(guarded)
    fleet, facts = Load(ranks), Fleet(ranks)
    watch.on_fact(JobFormed(membership=fleet.membership), 0.0)
    took, findings = [], 0
    for second in range(_HEALTHY_S + _SICK_S):
        frozen_s = second - _HEALTHY_S if sick and second >= _HEALTHY_S else None
        batches = fleet.second(second) if frozen_s is None else stuck(fleet, sick, frozen_s)
        progress = facts.second(min(second, _HEALTHY_S)) if frozen_s is None else []
        began = time.process_time()
        for index, data in enumerate(batches):
            now_s = second + index / len(batches)
            watch.on_batch(decode_batch(data), now_s)
            if index < len(progress):
                watch.on_fact(progress[index], now_s)
            if index % max(1, len(batches) // 5) == 0:
                findings += len(watch.tick(now_s))
        took.append(time.process_time() - began)
    if any(each.quarantined for each in guarded) or bool(sick) != bool(findings):
        lost = {each.name: each.quarantined for each in guarded if each.quarantined}
        raise RuntimeError(f"{findings} findings about {sick} frozen ranks; out: {lost}")
    return {
        "ranks": ranks,
        "sick": sick,
        "second_of_life_s": round(statistics.median(took[_HEALTHY_S:]), 4),
    }


def stuck(fleet: Load, sick: int, frozen_s: int) -> list[bytes]:
    """Batches of all machines while the first rank of each of ``sick`` machines stands still."""
    world, local = fleet.membership.layout.world_size, RANKS_PER_MACHINE
    frozen = np.arange(sick) * local
    pulses = np.zeros(world, PULSE)
    pulses["rank"], pulses["step"], pulses["phase"] = np.arange(world), _HEALTHY_S, 2
    pulses["phase_ns"] = 10**9 * (frozen_s + 1)
    pulses["state"], pulses["age_ns"] = ord("R"), 10**7
    pulses["state"][frozen], pulses["age_ns"][frozen] = ord("T"), 10**9 * (frozen_s + 1)
    waiting = np.zeros(world, RECORD)
    waiting["rank"], waiting["peer"] = np.arange(world), -1
    waiting["step"], waiting["sequence"], waiting["group"] = _HEALTHY_S, 1, 7
    waiting["op"], waiting["duration_ns"] = OPS.index("allreduce"), 10**9 * (frozen_s + 1)
    heads = np.zeros(world, HEAD)
    heads["rank"], heads["group"], heads["issued"] = np.arange(world), 7, 2
    heads["issued"][frozen] = 1
    batches = []
    for slot, member in enumerate(fleet.membership.members):
        mine = slice(slot * local, (slot + 1) * local)
        there = waiting[mine][~np.isin(waiting["rank"][mine], frozen)]
        more = Sections(pulses=pulses[mine], open=there, heads=heads[mine])
        groups = {7: (range(world),)} if slot % 64 == 0 else {}
        batch = Batch("load", member.machine, 0, 1, np.zeros(0, RECORD), more=more, groups=groups)
        batches.append(encode_batch(batch))
    return batches


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def growth_exponent(rows: list[dict[str, Any]]) -> float:
    """The steepest growth of any figure from one size to the next: 1 is linear."""
    steepest = 0.0
    for less, more in pairwise(rows):
        for name in ("form_s", "second_of_life_s", "resumed_s", "resume_s", "peak_bytes"):
            if less[name] > 0 and more[name] > 0:
                grown = math.log(more[name] / less[name])
                steepest = max(steepest, grown / math.log(more["ranks"] / less["ranks"]))
    return round(steepest, 3)


def apart(function: Any, *arguments: Any) -> Any:
    """Call it in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for ranks in sorted(options.ranks):
        rows.append(apart(row, ranks))
        print(rows[-1], file=sys.stderr, flush=True)
    watches = []
    for ranks in sorted(set(options.ranks) & set(DETECTOR_RANKS)):
        for sick in (0, 1, max(1, ranks // 512)):
            watches.append(apart(watched, ranks, sick))
            print(watches[-1], file=sys.stderr, flush=True)
    result = {"rows": rows, "growth_exponent": growth_exponent(rows), "detector": watches}
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
