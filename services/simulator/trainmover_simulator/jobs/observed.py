"""What a job's facts say: how long its machines were missed, how long they took to get warm; pure.

Facts come from a running job's bus or from a recording. Each has the time at which it was stated,
by the clock of whoever stated it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from trainmover.errors import ConfigError
from trainmover.events import executor, machine, migration
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Layout, Membership

__all__ = ["Interruption", "Run", "Steps", "Took", "observe"]

_BEFORE_S: Final = 60.0
"""So long before the planner acts a break may be its reason."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """A migration that was committed; durations in seconds.

    Attributes:
        at_s: When the first sign of it came: a broken step or link, or the proposal.
        slots: Slots that changed hands; none where only links were formed again.
        planned: Whether the machines were well and left by plan.
        warm: Whether each joiner was ready for its slot.
        detect_s: From the first sign until the planner acted; 0 for a planned move.
        waited_s: How long the job was held, because no machine was left.
        pause_s: What the slowest rank stood still, beyond the step that it would have taken.
    """

    at_s: float
    slots: tuple[int, ...]
    planned: bool
    warm: bool
    detect_s: float
    waited_s: float
    pause_s: float

    @property
    def switch_s(self) -> float:
        """The pause without what went before the plan."""
        return max(0.0, self.pause_s - self.detect_s - self.waited_s)


@dataclass(frozen=True, slots=True)
class Took:
    """Something that was over at ``at_s`` and had taken ``seconds``."""

    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Steps:
    """What was reported of a job's steps by whoever was ahead.

    Attributes:
        at_s: When.
        count: How many were completed.
        step_s: Median of the latest, in seconds.
    """

    at_s: float
    count: int
    step_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """A job, as far as it was observed.

    Attributes:
        layout: Its slots and ranks.
        standbys: Machines beside those that train.
        begin_s: When it formed.
        end_s: When the last fact was stated.
        interruptions: In order.
        steps: In order; each has more of them than the one before.
        warm: Times from a machine's registration until it was ready for all slots.
        refill: Times from the failure in which a standby was used until another one registered.
    """

    layout: Layout
    standbys: int
    begin_s: float
    end_s: float
    interruptions: tuple[Interruption, ...] = ()
    steps: tuple[Steps, ...] = ()
    warm: tuple[Took, ...] = ()
    refill: tuple[Took, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it was observed."""
        return max(0.0, self.end_s - self.begin_s)

    @property
    def step_s(self) -> float | None:
        """Median step in seconds, each step counted once; None without two reports."""
        weights = sorted((b.step_s, b.count - a.count) for a, b in pairwise(self.steps))
        left = sum(weight for _, weight in weights) / 2
        for step_s, weight in weights:
            left -= weight
            if left <= 0:
                return step_s
        return None

    def share(self, step_s: float) -> float | None:
        """Share of the time that went into steps that stayed; None without two reports.

        Steps are counted at one length. So whatever made steps longer counts as lost, not only the
        pauses.

        Args:
            step_s: Length of an undisturbed step.
        """
        if len(self.steps) < 2 or self.steps[-1].at_s <= self.steps[0].at_s:
            return None
        first, last = self.steps[0], self.steps[-1]
        return (last.count - first.count) * step_s / (last.at_s - first.at_s)

    @property
    def ettr(self) -> float | None:
        """The share at the run's own median step."""
        share = None if self.step_s is None else self.share(self.step_s)
        return None if share is None else min(1.0, share)

    def between(self, begin_s: float, end_s: float) -> Run:
        """The part of it from ``begin_s`` until before ``end_s``."""

        def inside(at_s: float) -> bool:
            return begin_s <= at_s < end_s

        return replace(
            self,
            begin_s=max(begin_s, self.begin_s),
            end_s=min(end_s, self.end_s),
            interruptions=tuple(one for one in self.interruptions if inside(one.at_s)),
            steps=tuple(one for one in self.steps if inside(one.at_s)),
            warm=tuple(one for one in self.warm if inside(one.at_s)),
            refill=tuple(one for one in self.refill if inside(one.at_s)),
        )


def observe(facts: Iterable[tuple[float, Frozen]]) -> Run:
    """Fold a job's facts, from its first on.

    Args:
        facts: (second at which it was stated, fact), in the order of the bus.

    Raises:
        ConfigError: The job had not formed.
    """
    fold = _Fold()
    for at_s, fact in facts:
        fold.take(at_s, fact)
    return fold.run()


@dataclass(slots=True)
class _Open:
    """A migration under way."""

    sign_s: float
    acted_s: float
    planned: bool
    plan: Plan | None = None
    approved_s: float = 0.0
    held_s: float | None = None
    committed: bool = False
    pause_s: float = 0.0


@dataclass(slots=True)
class _Fold:
    begin_s: float | None = None
    end_s: float = 0.0
    membership: Membership | None = None
    told_standbys: int = 0
    sign_s: float | None = None
    held_s: float | None = None
    moves: dict[str, _Open] = field(default_factory=dict)
    steps: list[Steps] = field(default_factory=list)
    warm: list[Took] = field(default_factory=list)
    refill: list[Took] = field(default_factory=list)
    used: deque[tuple[str, float]] = field(default_factory=deque)
    """Standbys that were used and not replaced yet: by which migration, and when it was needed."""
    registered: dict[str, tuple[int, float, int]] = field(default_factory=dict)
    ready: dict[str, set[int]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def take(self, at_s: float, fact: Frozen) -> None:
        """Take in one fact."""
        self.end_s = max(self.end_s, at_s)
        match fact:
            case migration.JobFormed(membership=membership):
                self.begin_s, self.membership = at_s, membership
            case migration.JobHeld():
                self.held_s = at_s if self.held_s is None else self.held_s
            case machine.LinkLost(epoch=epoch) | executor.StepBroken(epoch=epoch):
                # Some ranks tell of a break when it is mended already.
                if self.membership is not None and epoch >= self.membership.epoch:
                    self.sign_s = at_s if self.sign_s is None else self.sign_s
            case _:
                self._machine(at_s, fact)
                self._migration(at_s, fact)
                self._progress(at_s, fact)

    def run(self) -> Run:
        """What it adds up to."""
        if self.begin_s is None or self.membership is None:
            raise ConfigError(
                "the job has not formed as far as its facts go: there is nothing to take from it."
            )
        members = {one.machine for one in self.membership.members}
        beside = self.registered.keys() - self.gone - members
        return Run(
            layout=self.membership.layout,
            standbys=max(self.told_standbys, len(beside)),
            begin_s=self.begin_s,
            end_s=self.end_s,
            interruptions=tuple(
                sorted(map(_closed, filter(_is_whole, self.moves.values())), key=_when)
            ),
            steps=tuple(self.steps),
            warm=tuple(self.warm),
            refill=tuple(self.refill),
        )

    def _machine(self, at_s: float, fact: Frozen) -> None:
        match fact:
            case machine.MachineRegistered(machine=offered):
                self.told_standbys = fact.nnodes_max - fact.nnodes_min
                limit = fact.warm_limit or fact.nnodes_min
                self.registered[offered.name] = (
                    offered.generation,
                    at_s,
                    min(limit, fact.nnodes_min),
                )
                self.ready[offered.name] = set()
                self.gone.discard(offered.name)
                if self.used:
                    _, since_s = self.used.popleft()
                    self.refill.append(Took(at_s, max(0.0, at_s - since_s)))
            case machine.MachineReady(machine=name, generation=generation, slot=slot):
                at, since_s, wanted = self.registered.get(name, (-1, 0.0, 0))
                if at != generation or slot in self.ready[name]:
                    return
                self.ready[name].add(slot)
                if len(self.ready[name]) == wanted:
                    self.warm.append(Took(at_s, max(0.0, at_s - since_s)))
            case (
                machine.MachineLost(machine=name)
                | machine.MachineQuarantined(machine=name)
                | machine.MachineReleased(machine=name)
            ):
                self.gone.add(name)
            case _:
                pass

    def _migration(self, at_s: float, fact: Frozen) -> None:
        match fact:
            case migration.MigrationProposed(migration=id, kind=kind):
                planned = kind == "planned"
                acted_s = at_s if self.held_s is None else min(at_s, self.held_s)
                sign_s = self.sign_s
                if planned or sign_s is None or not acted_s - _BEFORE_S < sign_s < acted_s:
                    sign_s = acted_s
                self.moves[id] = _Open(sign_s, acted_s, planned)
            case migration.MigrationApproved(migration=id, plan=plan) if id in self.moves:
                move = self.moves[id]
                move.plan, move.approved_s, move.held_s = plan, at_s, self.held_s
                # Not at the commit: a leaver may be back before the planner says that it is free.
                self.used.extend([(id, move.sign_s)] * (len(plan.moves) * _is_warm(plan)))
            case migration.MigrationAborted(migration=id) | migration.MigrationFailed(migration=id):
                self.used = deque(one for one in self.used if one[0] != id)
            case migration.MigrationCommitted(migration=id, membership=membership):
                self.membership, self.sign_s, self.held_s = membership, None, None
                if id in self.moves:
                    self.moves[id].committed = True
            case _:
                pass

    def _progress(self, at_s: float, fact: Frozen) -> None:
        match fact:
            case executor.StepProgress(step=step, step_s=step_s):
                self._step(at_s, step, step_s)
            case executor.StepResumed(migration=id, step=step, step_s=step_s):
                # The bus keeps few reports of progress, and all of these.
                self._step(at_s, step, step_s)
                if id in self.moves:
                    self.moves[id].pause_s = max(self.moves[id].pause_s, fact.pause_s)
            case _:
                pass

    def _step(self, at_s: float, count: int, step_s: float) -> None:
        if not self.steps or count > self.steps[-1].count:
            self.steps.append(Steps(at_s, count, step_s))


def _is_warm(plan: Plan) -> bool:
    """Whether no joiner has to start its program first; older plans name no candidates."""
    return not any(one.chosen and one.costs.get("cold") for one in plan.candidates)


def _is_whole(move: _Open) -> bool:
    return move.committed and move.plan is not None


def _closed(move: _Open) -> Interruption:
    plan = move.plan
    assert plan is not None  # noqa: S101 - it is whole
    held = 0.0 if move.held_s is None else max(0.0, move.approved_s - move.held_s)
    return Interruption(
        at_s=move.sign_s,
        slots=tuple(one.slot for one in plan.moves),
        planned=move.planned,
        warm=_is_warm(plan),
        detect_s=0.0 if move.planned else max(0.0, move.acted_s - move.sign_s),
        waited_s=held,
        pause_s=move.pause_s,
    )


def _when(one: Interruption) -> float:
    return one.at_s
