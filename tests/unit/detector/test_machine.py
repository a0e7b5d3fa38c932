"""Whatever happens, in whatever order: what the detector's core never says."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit import factories as make

from trainmover.detection import BaseDetector, Finding
from trainmover.detection.guard import Guarded
from trainmover.events.incident import IncidentClosed, IncidentOpened, IncidentUpdated
from trainmover.events.machine import LinkLost, WorkerExited
from trainmover.events.migration import (
    JobFinished,
    JobFormed,
    MigrationApproved,
    MigrationCommitted,
)
from trainmover.job.plan import MigrationKind, Move, Plan
from trainmover.job.topology import Frozen, Membership
from trainmover.telemetry.records import RECORD, Batch
from trainmover_detector.backlog import Backlog
from trainmover_detector.core import DetectorCore, key_of
from trainmover_detector.detectors.liveness import LivenessDetector

SLOTS = st.integers(0, 2)
HUSH_S = 0.6
"""After so long a silence one broken link names a machine."""


def no_time() -> float:
    """Nobody is slow in a test that is to say the same thing twice."""
    return 0.0


class Told(BaseDetector):
    """Finds what it is told to, once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def tick(self, now_s: float) -> Iterable[Finding]:
        said, self.findings = self.findings, []
        return said


class DetectorMachine(RuleBasedStateMachine):
    """A job of three machines and as many standbys as it takes, and a stream of facts."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.stream: list[tuple[Frozen, float]] = []
        self.membership = make.membership_of("w-0", "w-1", "w-2")
        self.generations = dict.fromkeys(("w-0", "w-1", "w-2"), 0)
        self.heard_s: dict[str, float] = {}
        self.suspects: set[str] = set()
        self.plans = 0
        self.approved: Plan | None = None
        self.over = False
        self.open: dict[str, IncidentOpened] = {}
        self.ended: set[str] = set()
        self.begin()

    def begin(self) -> None:
        self.told = Told()
        self.core = self.fresh(self.told)
        self.twin_told = Told()
        self.twin = self.fresh(self.twin_told)

    @staticmethod
    def fresh(told: Told) -> DetectorCore:
        detectors = {"liveness": LivenessDetector(), "told": told}
        return DetectorCore([Guarded(name, one, clock=no_time) for name, one in detectors.items()])

    def feed(self, ask: Callable[[DetectorCore], list[Frozen]]) -> None:
        said = ask(self.core)
        assert ask(self.twin) == said, "equal input, another output"
        self.publish(said)

    def publish(self, said: list[Frozen]) -> None:
        """Every incident has one beginning and one end, and nobody is accused for nothing."""
        for fact in said:
            self.stream.append((fact, self.now_s))
            match fact:
                case IncidentOpened(id=name):
                    assert name not in self.open.keys() | self.ended
                    self.open[name] = fact
                    if fact.detector == "liveness":
                        self.check_accused(fact.machine or "")
                case IncidentUpdated(id=name):
                    assert name in self.open
                case IncidentClosed(id=name):
                    del self.open[name]
                    self.ended.add(name)
                case _:
                    pass

    def check_accused(self, name: str) -> None:
        silent = self.now_s - self.heard_s.get(name, -1e9) >= HUSH_S
        assert name in self.suspects or silent, f"{name} is alive and well"

    def fact(self, fact: Frozen) -> None:
        self.stream.append((fact, self.now_s))
        self.feed(lambda core: core.on_fact(fact, self.now_s))

    def name_of(self, slot: int) -> str:
        return self.membership.members[slot].machine

    # -- what happens ----------------------------------------------------------------------------

    @initialize()
    def forms(self) -> None:
        for name in self.generations:
            self.fact(make.registered(name))
        self.fact(JobFormed(membership=self.membership))

    @rule(slots=st.sets(SLOTS), stale=st.booleans())
    def telemetry(self, slots: set[int], *, stale: bool) -> None:
        for slot in sorted(slots):
            name = self.name_of(slot)
            epoch = self.membership.epoch - stale
            batch = Batch("j", name, self.generations[name], epoch, np.zeros(0, RECORD))
            self.heard_s[name] = self.now_s
            self.feed(lambda core, batch=batch: core.on_batch(batch, self.now_s))  # type: ignore[misc]

    @rule(seconds=st.sampled_from([0.05, 0.2, 0.2, 0.2, 0.7, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.feed(lambda core: core.tick(self.now_s))

    @rule(
        slot=SLOTS,
        kind=st.sampled_from(["straggler", "hang"]),
        advice=st.sampled_from(["none", "move", "recover"]),
        closed=st.booleans(),
    )
    def somebody_finds(self, slot: int, kind: str, advice: str, *, closed: bool) -> None:
        finding = Finding(
            kind=kind,
            machine=self.name_of(slot),
            rank=slot,
            confidence=0.9,
            summary="it is told to say so",
            advice=advice,  # type: ignore[arg-type]
            closed=closed,
        )
        for told in (self.told, self.twin_told):
            told.findings = [finding]
        self.time_passes(0.2)

    @rule(slot=SLOTS, stale=st.booleans())
    def process_ends(self, slot: int, *, stale: bool) -> None:
        name = self.name_of(slot)
        if not stale:
            self.suspects.add(name)
        self.fact(
            WorkerExited(
                machine=name,
                generation=self.generations[name] - stale,
                rank=slot,
                epoch=self.membership.epoch,
                exit_code=None,
                signal=9,
            )
        )

    @rule(slot=SLOTS, ahead=st.sampled_from([0, 0, -1]))
    def link_breaks(self, slot: int, ahead: int) -> None:
        about = {"machine": self.name_of(slot), "rank": slot, "step": 3, "kind": "reset"}
        peer = (slot + 1) % 3
        blamed = {"peer_rank": peer, "peer_machine": self.name_of(peer)}
        self.suspects |= {self.name_of(slot), self.name_of(peer)}
        epoch = self.membership.epoch + ahead
        self.fact(LinkLost.model_validate({**about, **blamed, "epoch": epoch}))

    @precondition(lambda self: self.approved is None)
    @rule(slot=SLOTS, kind=st.sampled_from(["failure", "planned"]))
    def plan_is_approved(self, slot: int, kind: MigrationKind) -> None:
        self.plans += 1
        joiner = f"s-{self.plans}"
        self.generations[joiner] = 0
        self.fact(make.registered(joiner))
        names = [one.machine for one in self.membership.members]
        move = Move(slot=slot, leaver=names[slot], joiner=joiner)
        names[slot] = joiner
        after = make.membership_of(*names, epoch=self.membership.epoch + 1)
        self.approved = Plan(
            id=f"m-{self.plans}",
            job="j",
            kind=kind,
            from_epoch=self.membership.epoch,
            membership=after,
            moves=(move,),
            sources={slot: (slot + 1) % 3},
        )
        about = {"migration": self.approved.id, "kind": kind, "cause": "", **move.model_dump()}
        self.fact(MigrationApproved.model_validate({**about, "plan": self.approved}))
        if kind == "failure":
            self.membership = after

    @precondition(lambda self: self.approved is not None)
    @rule()
    def plan_is_committed(self) -> None:
        plan, self.approved = self.approved, None
        assert plan is not None
        self.membership = plan.membership
        (move,) = plan.moves
        about = {"migration": plan.id, "kind": plan.kind, "cause": "", **move.model_dump()}
        more = {"epoch": plan.epoch, "step": 5, "membership": plan.membership}
        self.fact(MigrationCommitted.model_validate({**about, **more}))

    @rule(slot=SLOTS)
    def machine_starts_over(self, slot: int) -> None:
        plans = [self.membership, *([self.approved.membership] if self.approved else [])]
        wanted = {one.machine for membership in plans for one in membership.members}
        if gone := sorted(self.generations.keys() - wanted):
            name = gone[slot % len(gone)]
            self.generations[name] += 1
            self.fact(make.registered(name, generation=self.generations[name]))

    @rule()
    def detector_starts_over(self) -> None:
        self.begin()
        rests = []
        for core in (self.core, self.twin):
            backlog = Backlog(core)
            for fact, at_s in self.stream:
                backlog.take(fact, at_s)
            rests.append(backlog.rest())
        assert rests[0] == rests[1]
        self.publish(rests[0])

    @precondition(lambda self: len(self.stream) > 30)
    @rule()
    def job_ends(self) -> None:
        self.over = True
        self.fact(JobFinished(epoch=self.membership.epoch, step=9))

    # -- what must be ----------------------------------------------------------------------------

    @invariant()
    def what_is_open_is_found_once(self) -> None:
        assert {one.id for one in self.core.incidents} == self.open.keys()
        assert len({key_of(one) for one in self.open.values()}) == len(self.open)
        assert not (self.over and self.open)

    @invariant()
    def nobody_is_accused_who_left(self) -> None:
        if self.approved is not None:
            return  # its leaver is looked at until the commit
        members = {one.machine for one in self.membership.members}
        assert {one.machine for one in self.core.incidents} <= members

    @invariant()
    def the_core_knows_who_sits_where(self) -> None:
        known: Membership | None = self.core.membership
        assert self.over or known == self.membership


DetectorMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
TestDetectorMachine = DetectorMachine.TestCase
