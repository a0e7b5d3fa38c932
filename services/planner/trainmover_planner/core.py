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
from trainmover.job.tables import Table
from trainmover.job.topology import Membership
from trainmover.protocol import migration as protocol
from trainmover.protocol.table import Phase
from trainmover_planner.machines import formation
from trainmover_planner.migrations import policy, requests
from trainmover_planner.migrations.migrations import advance, resend
from trainmover_planner.record import record
from trainmover_planner.recovery import recovery, replan
from trainmover_planner.state.effects import Command, Event, Fact, Request, SaveJob, Tick
from trainmover_planner.state.state import Control, Settings, State
from trainmover_planner.state.turn import Turn

__all__ = ["RESUME_GAP", "fold", "initial", "next_wake_s", "resume", "step"]

RESUME_GAP = 10
"""Epochs and ids that a planner skips for each time one started over.

Recovery commands leave before their facts are stored, so a planner that died in between may have
issued epochs that nothing on the bus tells of (INV-EPOCH-MONOTONE).
"""


def initial(job: str, settings: Settings | None = None) -> State:
    """A planner that knows nothing yet."""
    chosen = settings or Settings()
    control = Control(mode=chosen.automation, reason="as the planner started")
    return State(job=job, settings=chosen, control=control)


def step(state: State, event: Event, now_s: float) -> tuple[State, tuple[Command, ...]]:
    """Take in one event and decide.

    Args:
        state: What is known.
        event: A fact, a request or the passing of time.
        now_s: The time in seconds; must not go back.
    """
    turn = Turn(state, now_s)
    match event:
        case Fact():
            record(turn, event)
            due = state.due_s is not None and now_s >= state.due_s
        case Request():
            requests.answer(turn, event)
            due = True
        case Tick():
            due = True
    if due or turn.changed:
        _decide(turn, due=due)
    return turn.state, _finish(turn)


def fold(state: State, fact: Fact, at_s: float) -> State:
    """Take in a stored fact of an earlier planner's time, the planner's own ones included.

    Args:
        state: What is known so far.
        fact: The next fact in stream order.
        at_s: When it was said, in seconds.
    """
    turn = Turn(state, at_s, replay=True)
    record(turn, fact)
    return turn.state


def resume(
    state: State, now_s: float, *, incarnation: int = 1
) -> tuple[State, tuple[Command, ...]]:
    """Go on after all stored facts were folded.

    Publishes what should have been published, sends again every command that may not have left,
    and decides what became due in the meantime.

    Args:
        state: What the stored facts say.
        now_s: The time in seconds.
        incarnation: How many planners of this job there were, this one not counted; no two may
            be told the same number, or they might issue the same epoch.
    """
    turn = Turn(state, now_s)
    turn.set(unannounced={}, early=Table())
    turn.commands.extend(state.unannounced.values())
    if state.membership is not None and not state.over:
        gap = RESUME_GAP * incarnation
        turn.set(issued=state.issued + gap, sequence=state.sequence + gap)
        for one in state.migrations.values():
            waits = one.phase is Phase.PROPOSED and state.control.mode != "automatic"
            if one.phase in (Phase.PROPOSED, Phase.APPROVED) and not waits:
                advance(turn, one.id, protocol.Abort("the planner started over"))
        resend(turn)
        if not state.seen and len(state.memberships) == 1:
            formation.start_members(turn)
    turn.changed |= _EVERYTHING
    _decide(turn, due=True)
    return turn.state, _finish(turn)


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
    if any(policy.advises_move(one) for one in state.incidents.values()):
        times += list(state.cooldown.values())
    formation_s = formation.forms_at_s(state)
    if formation_s is not None:
        times.append(formation_s)
    return min((at_s for at_s in times if at_s > now_s), default=None)


def _decide(turn: Turn, *, due: bool) -> None:
    """Everything the state calls for; repeated until nothing more follows.

    Args:
        turn: The step under construction.
        due: Whether to look at what only time decides, too.
    """
    asked = {stage for stage in _STAGES if (due and stage.timed) or stage.fields & turn.changed}
    for _ in range(8):
        if turn.state.over:
            _stop(turn)
            break
        for stage in _STAGES:
            if stage not in asked:
                continue
            asked.discard(stage)
            turn.changed = set()
            stage.decide(turn)
            asked |= {other for other in _STAGES if other.fields & turn.changed}
        if not asked:
            break
    turn.changed = set()
    turn.note(due_s=_due_s(turn.state, turn.now_s))


def _stop(turn: Turn) -> None:
    state = turn.state
    reason = state.reason or f"the job has {state.phase}"
    if "phase" in turn.touched:
        turn.stop_everybody(reason)
    else:
        turn.stop_newcomers(reason)


def _expire(turn: Turn) -> None:
    """Phases of migrations that lasted for too long end."""
    for id in turn.state.open:
        if turn.state.migrations[id].open:
            advance(turn, id, protocol.Tick())


def _finish_job(turn: Turn) -> None:
    state = turn.state
    if state.over:
        return
    for seats in state.seats:
        if len(state.finished) >= seats.layout.world_size and _all_finished(state, seats):
            turn.set(phase="finished", reason="every rank's program ended normally")
            turn.publish(JobFinished(epoch=seats.epoch, step=state.step), id="job.finished")
            return


def _all_finished(state: State, seats: Membership) -> bool:
    return all(
        (member.machine, rank) in state.finished
        for slot, member in enumerate(seats.members)
        for rank in seats.layout.ranks_of(slot)
    )


@dataclass(frozen=True)
class _Stage:
    """One decision.

    Attributes:
        decide: Takes it.
        fields: Fields of the state that it looks at.
        timed: Whether it may find something although none of them changed.
    """

    decide: Callable[[Turn], None]
    fields: frozenset[str]
    timed: bool = False


_FLYING: Final = frozenset({"phase", "membership", "migrations", "open"})
_MACHINES: Final = frozenset({"inventory", "deaths", "spent"})

_STAGES: Final = (
    _Stage(formation.refuse_misfits, frozenset({"newcomers", "inventory"})),
    _Stage(formation.form, _MACHINES | {"arrived_s", "shape", "phase"}, timed=True),
    _Stage(_expire, frozenset({"open"}), timed=True),
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
        policy.automate,
        _FLYING | _MACHINES | {"broken", "control", "cooldown", "incidents", "seen"},
        timed=True,
    ),
    _Stage(_finish_job, _FLYING | {"finished"}),
)
_EVERYTHING: Final = frozenset[str]().union(*(stage.fields for stage in _STAGES))

_TOLD: Final = frozenset({"phase", "phases", "membership", "inventory", "deaths", "control"})
"""What readers of the mirrored job want to know at once."""


def _finish(turn: Turn) -> tuple[Command, ...]:
    if turn.touched & _TOLD:
        turn.commands.append(SaveJob())
    return tuple(turn.commands)
