"""The migration state machine: ``step(state, event, now_s) -> (state, effects)``.

Pure: no clock, no I/O. The planner drives it with decisions (approve, abort, fail), with what the
ranks report and with the time; it answers with the facts to publish and the commands to send. The
planner says who and what; the ranks decide when, so a report always wins over a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from trainmover.commands import AbortMigration, Prepare, Recover, Release
from trainmover.events.executor import PlanCommitted, PlanFailed, PlanPrepared, PlanSwitched
from trainmover.plan import MigrationKind, Move, Plan
from trainmover.protocol import facts
from trainmover.protocol.inputs import (
    Abort,
    Approve,
    Begin,
    Effect,
    Fail,
    MigrationEvent,
    Publish,
    RankReport,
    Reject,
    Report,
    Send,
    SwitchSeen,
    Tick,
)
from trainmover.protocol.table import OPEN, Deadlines, Phase, Signal, allows, next_phase
from trainmover.topology import Membership

__all__ = [
    "Abort",
    "Approve",
    "Begin",
    "Effect",
    "Fail",
    "Migration",
    "MigrationEvent",
    "Publish",
    "RankReport",
    "Reject",
    "Report",
    "Send",
    "SwitchSeen",
    "Tick",
    "propose",
    "release",
    "standing_commands",
    "step",
]

_Ranks = frozenset[tuple[str, int]]
_NOBODY: Final[_Ranks] = frozenset()


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration.

    Attributes:
        slot: First slot that changes hands (0 when the plan only forms the links again).
        leaver: Machine in that slot; empty when nothing moves.
        asked: Who is to leave which slot; a plan adds the joiners.
        cause: One sentence for people.
        incident: The incident behind it, if any.
        decided_by: Who took the latest decision about it.
        approval: Why an operator approved it, if they said so.
        history: Every phase it was in, with the time (seconds) it began.
        before: The membership the plan starts from.
        prepared: (machine, rank) of each rank that reported phase 1 complete.
        switched: The same for phase 2.
        committed: The same for the first vote at the new epoch.
        failures: Reports of ranks that could not carry out the plan.
        step: Completed steps at the switch, as the furthest rank saw it.
        phases_s: For each part of phase 2 the slowest rank's seconds.
        trace: W3C trace headers, the incident's where there is one.
    """

    id: str
    job: str
    kind: MigrationKind
    slot: int
    leaver: str
    cause: str
    asked: tuple[Move, ...] = ()
    incident: str | None = None
    requested_by: str = "policy"
    decided_by: str = ""
    approval: str = ""
    phase: Phase = Phase.PROPOSED
    history: tuple[tuple[Phase, float], ...] = ()
    plan: Plan | None = None
    before: Membership | None = None
    prepared: _Ranks = _NOBODY
    switched: _Ranks = _NOBODY
    committed: _Ranks = _NOBODY
    failures: tuple[PlanFailed, ...] = ()
    step: int = 0
    phases_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    code: str = ""
    reason: str = ""
    deadline_s: float | None = None
    trace: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def open(self) -> bool:
        """Whether it is still under way."""
        return self.phase in OPEN

    @property
    def moves(self) -> tuple[Move, ...]:
        """Every slot that changes hands, without joiners until there is a plan."""
        return self.asked if self.plan is None else self.plan.moves

    @property
    def joiner(self) -> str:
        """Machine that takes the first slot; empty when nothing moves or no plan exists."""
        return self.moves[0].joiner if self.moves else ""

    @property
    def since_s(self) -> float:
        """When its phase began, in seconds."""
        return self.history[-1][1] if self.history else 0.0

    def wanted(self) -> _Ranks:
        """(machine, rank) of everybody whose report completes a phase."""
        if self.plan is None:
            return _NOBODY
        after = self.plan.membership
        return frozenset((after.machine_of(rank), rank) for rank in range(after.layout.world_size))

    def wanted_prepared(self) -> _Ranks:
        """The same for phase 1, which leavers end, too: their joiners are up to date then."""
        if self.plan is None or self.before is None or self.kind != "planned":
            return self.wanted()
        leaving = {(self.before.machine_of(rank), rank) for rank in self.plan.joining_ranks}
        return self.wanted() | leaving


_Result = tuple[Migration, tuple[Effect, ...]]


def propose(migration: Migration, now_s: float) -> _Result:
    """Begin a migration: its first fact.

    Args:
        migration: In phase ``proposed``, with an empty history.
        now_s: The time, in seconds.
    """
    state = replace(migration, history=((Phase.PROPOSED, now_s),))
    return state, (Publish(facts.of_phase(state)),)


def step(
    state: Migration, event: MigrationEvent, now_s: float, *, deadlines: Deadlines | None = None
) -> _Result:
    """Take in one event.

    Args:
        state: The migration.
        event: What happened.
        now_s: The time, in seconds; the same clock for all calls.
        deadlines: How long phases may last; the defaults when omitted.

    Raises:
        ProtocolError: The event is a decision that the phase does not allow. Reports never
            raise: late and repeated ones change nothing.
    """
    limits = deadlines or Deadlines()
    match event:
        case Report(fact=fact):
            return _report(state, fact, now_s, limits)
        case Tick():
            return _tick(state, now_s, limits)
        case SwitchSeen():
            return _try(state, Signal.SWITCHED, now_s, limits)
        case Approve(plan=plan, before=before, by=by, why=why):
            state = replace(state, plan=plan, before=before, decided_by=by, approval=why)
            signal = Signal.APPROVE
        case Reject(code=code, reason=reason, by=by):
            state = replace(state, code=code, reason=reason, decided_by=by)
            signal = Signal.REJECT
        case Begin():
            signal = Signal.BEGIN
        case Abort(reason=reason, by=by):
            state, signal = replace(state, reason=reason, decided_by=by), Signal.ABORT
        case Fail(reason=reason):
            state, signal = replace(state, reason=reason), Signal.FAIL
    return _enter(state, signal, now_s, limits)


def standing_commands(state: Migration) -> tuple[Send, ...]:
    """The commands that the phase implies; sending them again changes nothing at the machines.

    A planner that starts over sends them all, because it cannot know which ones left.
    """
    plan, before = state.plan, state.before
    if plan is None or before is None:
        return ()
    joiners = [move.joiner for move in plan.moves]
    old = [member.machine for member in before.members]
    everybody = list(dict.fromkeys([*old, *joiners]))
    if state.phase is Phase.ABORTED:
        command = AbortMigration(migration=state.id, epoch=plan.epoch, reason=state.reason)
        return tuple(Send(m, command, f"{plan.id}:{m}:abort") for m in everybody)
    if state.phase not in (Phase.PREPARING, Phase.READY, Phase.SWITCHING):
        return ()
    if plan.kind == "planned":
        return tuple(Send(m, Prepare(plan=plan), f"{plan.id}:{m}:prepare") for m in everybody)
    members = [member.machine for member in plan.membership.members]
    return tuple(Send(m, Recover(plan=plan), f"{plan.id}:{m}:recover") for m in members)


def release(plan: Plan, machine: str, *, generation: int, stop: bool) -> Send:
    """The command that ends a machine's ranks: it holds no slot any more at the plan's epoch.

    Args:
        plan: What took its slot away.
        machine: The machine.
        generation: The life of the machine that is meant.
        stop: End the agent too, instead of becoming a standby.
    """
    command = Release(generation=generation, epoch=plan.epoch, then="stop" if stop else "standby")
    return Send(machine, command, f"{plan.id}:{machine}:release")


def _enter(state: Migration, signal: Signal, now_s: float, limits: Deadlines) -> _Result:
    phase = next_phase(state.id, kind=state.kind, phase=state.phase, signal=signal)
    lasts_s = limits.of(state.kind, phase)
    deadline_s = None if lasts_s is None else now_s + lasts_s
    if state.kind == "failure" and state.deadline_s is not None and phase in OPEN:
        deadline_s = state.deadline_s  # a recovery has one deadline, from its plan to its commit
    entered = replace(
        state, phase=phase, deadline_s=deadline_s, history=(*state.history, (phase, now_s))
    )
    effects: tuple[Effect, ...] = (Publish(facts.of_phase(entered)),)
    if phase in (Phase.PREPARING, Phase.ABORTED):
        effects = (*standing_commands(entered), *effects)
    return entered, effects


def _try(state: Migration, signal: Signal, now_s: float, limits: Deadlines) -> _Result:
    if not allows(kind=state.kind, phase=state.phase, signal=signal):
        return state, ()
    return _enter(state, signal, now_s, limits)


def _report(state: Migration, fact: RankReport, now_s: float, limits: Deadlines) -> _Result:
    if state.plan is None or fact.epoch != state.plan.epoch:
        return state, ()
    who = (fact.machine, fact.rank)
    effects: tuple[Effect, ...] = ()
    match fact:
        case PlanPrepared():
            state = replace(state, prepared=state.prepared | {who})
            if state.wanted_prepared() <= state.prepared:
                return _try(state, Signal.PREPARED, now_s, limits)
        case PlanSwitched():
            state = replace(
                state,
                switched=state.switched | {who},
                step=max(state.step, fact.step),
                phases_s=_slowest(state.phases_s, fact.phases_s),
            )
            return _try(state, Signal.SWITCHED, now_s, limits)
        case PlanCommitted():
            state, effects = _try(
                replace(
                    state,
                    switched=state.switched | {who},
                    committed=state.committed | {who},
                    step=max(state.step, fact.step),
                ),
                Signal.SWITCHED,
                now_s,
                limits,
            )
            if state.wanted() <= state.committed:
                state, more = _try(state, Signal.COMMITTED, now_s, limits)
                effects += more
        case PlanFailed():
            if fact in state.failures:
                return state, ()
            state = replace(state, failures=(*state.failures, fact))
            if allows(kind=state.kind, phase=state.phase, signal=Signal.ABORT):
                reason = f"rank {fact.rank} on {fact.machine} cannot: {fact.reason}"
                state = replace(state, reason=reason, decided_by="planner")
                return _enter(state, Signal.ABORT, now_s, limits)
    return state, effects


def _tick(state: Migration, now_s: float, limits: Deadlines) -> _Result:
    if state.deadline_s is None or now_s < state.deadline_s:
        return state, ()
    done = {Phase.PREPARING: state.prepared, Phase.READY: state.switched}.get(
        state.phase, state.committed
    )
    wanted = state.wanted_prepared() if state.phase is Phase.PREPARING else state.wanted()
    missing = sorted({rank for _, rank in wanted - done})
    reason = f"still {state.phase} after {now_s - state.since_s:.1f} s; waiting for ranks {missing}"
    planned = allows(kind=state.kind, phase=state.phase, signal=Signal.ABORT)
    signal = Signal.ABORT if planned else Signal.FAIL
    return _enter(replace(state, reason=reason, decided_by="planner"), signal, now_s, limits)


def _slowest(known: Mapping[str, float], new: Mapping[str, float]) -> Mapping[str, float]:
    names = dict.fromkeys([*known, *new])
    return MappingProxyType({n: max(known.get(n, 0.0), new.get(n, 0.0)) for n in names})
