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
from trainmover.job.plan import Forecast, MigrationKind, Move, Plan
from trainmover.job.spans import some
from trainmover.job.tables import Table
from trainmover.job.topology import Membership
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
    Wait,
)
from trainmover.protocol.table import OPEN, Deadlines, Phase, Signal, allows, next_phase

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
    "Wait",
    "propose",
    "release",
    "standing_commands",
    "step",
]

_Ranks = Table[tuple[str, int], None]
_MOST_PARTS: Final = 64
"""So many parts of phase 2 are told apart."""


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
        forecast: What it was expected to cost and to save when policy proposed it.
        history: Every phase it was in, with the time (seconds) it began.
        before: The membership the plan starts from.
        prepared: (machine, rank) of each rank that reported phase 1 complete; here as below only
            of those whose report the plan waits for, so that their number tells when all did.
        switched: The same for phase 2.
        committed: The same for the first vote at the new epoch.
        failures: Reports of ranks that could not carry out the plan, the first of each.
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
    forecast: Forecast | None = None
    phase: Phase = Phase.PROPOSED
    history: tuple[tuple[Phase, float], ...] = ()
    plan: Plan | None = None
    before: Membership | None = None
    prepared: _Ranks = field(default_factory=Table)
    switched: _Ranks = field(default_factory=Table)
    committed: _Ranks = field(default_factory=Table)
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

    def takes_part(self, machine: str, rank: int) -> bool:
        """Whether the plan gives this rank to this machine: its reports complete a phase."""
        return self.plan is not None and self.plan.membership.holds(machine, rank)

    def hands_over(self, machine: str, rank: int) -> bool:
        """Whether this machine gives this rank away: it ends phase 1 when its joiner is current."""
        if self.plan is None or self.before is None or rank not in self.plan.sources:
            return False
        return self.kind == "planned" and self.before.holds(machine, rank)

    def missing(self) -> list[int]:
        """Ranks whose report its phase waits for, in order."""
        if self.plan is None:
            return []
        done = {Phase.PREPARING: self.prepared, Phase.READY: self.switched}.get(
            self.phase, self.committed
        )
        after = self.plan.membership
        ranks = {r for r in range(after.layout.world_size) if (after.machine_of(r), r) not in done}
        if self.phase is Phase.PREPARING:
            ranks |= {rank for who, rank in self._leaving() if (who, rank) not in done}
        return sorted(ranks)

    def all_prepared(self) -> bool:
        """Whether phase 1 is complete everywhere."""
        return len(self.prepared) == self._world_size() + len(self._leaving())

    def all_committed(self) -> bool:
        """Whether the first vote at the new epoch passed everywhere."""
        return len(self.committed) == self._world_size()

    def all_switched(self) -> bool:
        """Whether phase 2 is complete everywhere: what comes now lasts as long as a step does."""
        world_size = self._world_size()
        if self.plan is None or len(self.switched) < world_size:
            return False
        after = self.plan.membership
        return all((after.machine_of(rank), rank) in self.switched for rank in range(world_size))

    def _world_size(self) -> int:
        return 0 if self.plan is None else self.plan.membership.layout.world_size

    def _leaving(self) -> list[tuple[str, int]]:
        """Who hands a rank over to another machine."""
        if self.plan is None or self.before is None or self.kind != "planned":
            return []
        after, before = self.plan.membership, self.before
        leaving = [(before.machine_of(rank), rank) for rank in self.plan.sources]
        return [(who, rank) for who, rank in leaving if not after.holds(who, rank)]


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
        case Wait(until_s=until_s):
            return replace(state, deadline_s=until_s), ()
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
        prepare = Prepare(plan=plan)
        return tuple(Send(m, prepare, f"{plan.id}:{m}:prepare") for m in everybody)
    recover = Recover(plan=plan)
    members = [member.machine for member in plan.membership.members]
    return tuple(Send(m, recover, f"{plan.id}:{m}:recover") for m in members)


def release(plan: Plan, machine: str, *, generation: int, stop: bool) -> Send:
    """The command that ends a machine's ranks: it holds no slot any more at the plan's epoch.

    Args:
        plan: What took its slot away.
        machine: The machine.
        generation: The incarnation of the machine that is meant.
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
    takes_part = state.takes_part(fact.machine, fact.rank)
    if not takes_part and not state.hands_over(fact.machine, fact.rank):
        return state, ()  # nobody waits for it, so it must not speak for those who are waited for
    result: _Result = state, ()
    match fact:
        case PlanPrepared():
            result = _prepared(state, fact, now_s, limits)
        case PlanSwitched():
            result = _try(_switched(state, fact), Signal.SWITCHED, now_s, limits)
        case PlanCommitted() if takes_part:
            result = _committed(state, fact, now_s, limits)
        case PlanFailed():
            result = _failed(state, fact, now_s, limits)
        case _:
            pass
    return _without_haste(*result)


def _without_haste(state: Migration, effects: tuple[Effect, ...]) -> _Result:
    """Every rank is at the new epoch: deaths and broken steps end it, and no step is too long."""
    if state.phase is Phase.SWITCHING and state.deadline_s is not None and state.all_switched():
        state = replace(state, deadline_s=None)
    return state, effects


def _prepared(state: Migration, fact: PlanPrepared, now_s: float, limits: Deadlines) -> _Result:
    prepared = state.prepared.put((fact.machine, fact.rank), None)
    if prepared is state.prepared:
        return state, ()
    state = replace(state, prepared=prepared)
    if state.all_prepared():
        return _try(state, Signal.PREPARED, now_s, limits)
    return state, ()


def _switched(state: Migration, fact: PlanSwitched) -> Migration:
    switched = state.switched.put((fact.machine, fact.rank), None)
    if switched is state.switched:
        return state
    return replace(
        state,
        switched=switched,
        step=max(state.step, fact.step),
        phases_s=_slowest(state.phases_s, fact.phases_s),
    )


def _committed(state: Migration, fact: PlanCommitted, now_s: float, limits: Deadlines) -> _Result:
    who = (fact.machine, fact.rank)
    committed, switched = state.committed.put(who, None), state.switched.put(who, None)
    if committed is not state.committed or switched is not state.switched:
        step = max(state.step, fact.step)
        state = replace(state, switched=switched, committed=committed, step=step)
    state, effects = _try(state, Signal.SWITCHED, now_s, limits)
    if state.all_committed():
        state, more = _try(state, Signal.COMMITTED, now_s, limits)
        effects += more
    return state, effects


def _failed(state: Migration, fact: PlanFailed, now_s: float, limits: Deadlines) -> _Result:
    if any((one.machine, one.rank) == (fact.machine, fact.rank) for one in state.failures):
        return state, ()
    state = replace(state, failures=(*state.failures, fact))
    if not allows(kind=state.kind, phase=state.phase, signal=Signal.ABORT):
        return state, ()
    reason = f"rank {fact.rank} on {fact.machine} cannot: {fact.reason}"
    return _enter(replace(state, reason=reason, decided_by="planner"), Signal.ABORT, now_s, limits)


def _tick(state: Migration, now_s: float, limits: Deadlines) -> _Result:
    if state.deadline_s is None or now_s < state.deadline_s:
        return state, ()
    waited_s, missing = now_s - state.since_s, some(state.missing())
    reason = f"still {state.phase} after {waited_s:.1f} s; waiting for ranks {missing}"
    planned = allows(kind=state.kind, phase=state.phase, signal=Signal.ABORT)
    signal = Signal.ABORT if planned else Signal.FAIL
    return _enter(replace(state, reason=reason, decided_by="planner"), signal, now_s, limits)


def _slowest(known: Mapping[str, float], new: Mapping[str, float]) -> Mapping[str, float]:
    names = list(dict.fromkeys([*known, *new]))[:_MOST_PARTS]
    return MappingProxyType({n: max(known.get(n, 0.0), new.get(n, 0.0)) for n in names})
