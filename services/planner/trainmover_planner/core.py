"""The planner as a pure function: ``step(state, event, now_s) -> (state, commands)``.

Read in this order: ``state`` (what is known), ``record`` (how facts become knowledge), then the
decisions: ``formation``, ``recovery``, ``policy``, ``requests``. The shell is ``service``.

Decisions look at the state alone, never at the event that came in, so repeated and reordered
facts lead to the same end. Each names the fields of the state that it looks at, and is asked when
one of them changed or when something is due: most facts of a large job change nothing that anybody
has to decide about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trainmover.events.migration import JobFinished
from trainmover.events.operator import PolicyChanged, PolicyRefused
from trainmover.job.tables import Table
from trainmover.job.topology import Membership
from trainmover.policy.model import Policy
from trainmover.protocol import migration as protocol
from trainmover.protocol.table import Phase
from trainmover_planner.machines import formation
from trainmover_planner.migrations import drain, explaining, policy, requests
from trainmover_planner.migrations.migrations import advance, resend
from trainmover_planner.record import record
from trainmover_planner.recovery import deaths, recovery, replan
from trainmover_planner.rules.declaring import declare
from trainmover_planner.rules.ruling import turns_s
from trainmover_planner.state.effects import Command, Event, Fact, Request, SaveJob, Tick
from trainmover_planner.state.state import Control, State
from trainmover_planner.state.transition import Transition

__all__ = ["RESUME_GAP", "fold", "initial", "next_wake_s", "resume", "step"]

RESUME_GAP = 10
"""Epochs and ids that a planner skips for each time one started over.

Recovery commands leave before their facts are stored, so a planner that died in between may have
issued epochs that nothing on the bus tells of (INV-EPOCH-MONOTONE).
"""


def initial(job: str, policy: Policy | None = None) -> State:
    """A planner that knows nothing yet."""
    chosen = policy or Policy()
    control = Control(mode=chosen.automation, reason="as the planner started")
    return State(job=job, policy=chosen, control=control)


def step(state: State, event: Event, now_s: float) -> tuple[State, tuple[Command, ...]]:
    """Take in one event and decide.

    Args:
        state: What is known.
        event: A fact, a request, what is declared from now on, or the passing of time.
        now_s: The time in seconds; must not go back.
    """
    transition = Transition(state, now_s)
    match event:
        case Fact():
            record(transition, event)
            due = state.due_s is not None and now_s >= state.due_s
        case Request():
            requests.answer(transition, event)
            due = True
        case PolicyChanged() | PolicyRefused():
            declare(transition, event)
            due = True
        case Tick():
            due = True
    if due or transition.changed:
        _decide(transition, due=due)
    return transition.state, _finish(transition)


def fold(state: State, fact: Fact, at_s: float) -> State:
    """Take in a stored fact of an earlier planner's time, the planner's own ones included.

    Args:
        state: What is known so far.
        fact: The next fact in stream order.
        at_s: When it was said, in seconds.
    """
    transition = Transition(state, at_s, replay=True)
    record(transition, fact)
    return transition.state


def resume(
    state: State,
    now_s: float,
    *,
    incarnation: int = 1,
    declared: PolicyChanged | PolicyRefused | None = None,
) -> tuple[State, tuple[Command, ...]]:
    """Go on after all stored facts were folded.

    Publishes what should have been published, sends again every command that may not have left,
    and decides what became due in the meantime.

    Args:
        state: What the stored facts say.
        now_s: The time in seconds.
        incarnation: How many planners of this job there were, this one not counted; no two may
            be told the same number, or they might issue the same epoch.
        declared: What this planner was told; what was in force before when omitted.
    """
    transition = Transition(state, now_s)
    transition.set(unannounced={}, early=Table())
    transition.commands.extend(state.unannounced.values())
    if declared is not None:
        declare(transition, declared)
    if state.membership is not None and not state.over:
        gap = RESUME_GAP * incarnation
        transition.set(issued=state.issued + gap, sequence=state.sequence + gap)
        for one in state.migrations.values():
            waits = one.phase is Phase.PROPOSED and policy.waits(transition.state, one, now_s)
            if one.phase in (Phase.PROPOSED, Phase.APPROVED) and not waits:
                advance(transition, one.id, protocol.Abort("the planner started over"))
        resend(transition)
        if not state.seen and len(state.memberships) == 1:
            formation.start_members(transition)
    transition.changed |= _EVERYTHING
    _decide(transition, due=True)
    return transition.state, _finish(transition)


def next_wake_s(state: State) -> float | None:
    """When to call ``step`` with a tick at the latest, in seconds; None: nothing is due."""
    return state.due_s


def _due_s(state: State, now_s: float) -> float | None:
    """When something is due after ``now_s`` although nothing happens, in seconds."""
    if state.over:
        return None
    flying = [state.migrations[id].deadline_s for id in state.open]
    times = [deadline_s for deadline_s in flying if deadline_s]
    times += recovery.wakes_s(state)
    waits = drain.under_way(state) is not None
    if waits or any(policy.advises_move(one) for one in state.incidents.values()):
        times += list(state.cooldown.values())
    if state.incidents:
        times += turns_s(state, now_s)
    formation_s = formation.forms_at_s(state)
    if formation_s is not None:
        times.append(formation_s)
    return min((at_s for at_s in times if at_s > now_s), default=None)


def _decide(transition: Transition, *, due: bool) -> None:
    """Everything the state calls for; repeated until nothing more follows.

    Args:
        transition: The step under construction.
        due: Whether to look at what only time decides, too.
    """
    asked = {
        stage for stage in _STAGES if (due and stage.timed) or stage.fields & transition.changed
    }
    for _ in range(8):
        if transition.state.over:
            _stop(transition)
            break
        for stage in _STAGES:
            if stage not in asked:
                continue
            asked.discard(stage)
            transition.changed = set()
            stage.decide(transition)
            asked |= {other for other in _STAGES if other.fields & transition.changed}
        if not asked:
            break
    transition.changed = set()
    transition.note(due_s=_due_s(transition.state, transition.now_s))


def _stop(transition: Transition) -> None:
    state = transition.state
    reason = state.reason or f"the job has {state.phase}"
    if "phase" in transition.touched:
        transition.stop_everybody(reason)
    else:
        transition.stop_newcomers(reason)


def _expire(transition: Transition) -> None:
    """Phases of migrations that lasted for too long end."""
    for id in transition.state.open:
        one = transition.state.migrations[id]
        if not one.open or one.deadline_s is None or transition.now_s < one.deadline_s:
            continue
        until_s = recovery.waits_until_s(transition.state, one, now_s=transition.now_s)
        late = until_s <= transition.now_s
        advance(transition, id, protocol.Tick() if late else protocol.Wait(until_s))


def _finish_job(transition: Transition) -> None:
    state = transition.state
    if state.over:
        return
    for membership in state.current_memberships:
        if len(state.finished) >= membership.layout.world_size and _all_finished(state, membership):
            transition.set(phase="finished", reason="every rank's program ended normally")
            transition.publish(
                JobFinished(epoch=membership.epoch, step=state.step), id="job.finished"
            )
            return


def _all_finished(state: State, membership: Membership) -> bool:
    return all(
        (member.machine, rank) in state.finished
        for slot, member in enumerate(membership.members)
        for rank in membership.layout.ranks_of(slot)
    )


@dataclass(frozen=True)
class _Stage:
    """One decision.

    Attributes:
        decide: Takes it.
        fields: Fields of the state that it looks at.
        timed: Whether it may find something although none of them changed.
    """

    decide: Callable[[Transition], None]
    fields: frozenset[str]
    timed: bool = False


_FLYING: Final = frozenset({"phase", "membership", "migrations", "open"})
_MACHINES: Final = frozenset({"inventory", "deaths", "spent"})

_STAGES: Final = (
    _Stage(formation.refuse_misfits, frozenset({"newcomers", "inventory"})),
    _Stage(formation.form, _MACHINES | {"arrived_s", "shape", "phase"}, timed=True),
    _Stage(_expire, frozenset({"open"}), timed=True),
    _Stage(deaths.condemn_ripe, frozenset({"incidents", "policy"}), timed=True),
    _Stage(
        recovery.recover,
        _FLYING
        | _MACHINES
        | {"broken", "crashes", "finished", "held", "retry_s", "saved", "seen", "attempts"},
        timed=True,
    ),
    _Stage(replan.announce_losses, frozenset({"unsaid"})),
    _Stage(formation.warm_standbys, _FLYING | _MACHINES),
    _Stage(
        drain.proceed, _FLYING | _MACHINES | {"broken", "control", "policy", "seen"}, timed=True
    ),
    _Stage(
        policy.automate,
        _FLYING
        | _MACHINES
        | {"broken", "control", "cooldown", "incidents", "lately", "policy", "seen"},
        timed=True,
    ),
    _Stage(explaining.compare, frozenset({"declared", "incidents", "phase"}), timed=True),
    _Stage(_finish_job, _FLYING | {"finished"}),
)
_EVERYTHING: Final = frozenset[str]().union(*(stage.fields for stage in _STAGES))

_TOLD: Final = frozenset({"phase", "phases", "membership", "inventory", "deaths", "control"})
"""What readers of the mirrored job want to know at once."""


def _finish(transition: Transition) -> tuple[Command, ...]:
    if transition.touched & _TOLD:
        transition.commands.append(SaveJob())
    return tuple(transition.commands)
