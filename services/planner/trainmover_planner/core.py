"""The planner as a pure function: ``step(state, event, now_s) -> (state, commands)``.

Read in this order: ``state`` (what is known), ``record`` (how facts become knowledge), then the
decisions: ``formation``, ``recovery``, ``policy``, ``requests``. The shell is ``service``.

Decisions look at the state alone, never at the event that came in, so repeated and reordered
facts lead to the same end.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainmover.events.migration import JobFinished
from trainmover.protocol import migration as protocol
from trainmover.protocol.table import Phase
from trainmover_planner import formation, policy, recovery, replan, requests
from trainmover_planner.migrations import advance, resend
from trainmover_planner.record import record
from trainmover_planner.state import (
    Command,
    Control,
    Event,
    Fact,
    Request,
    SaveJob,
    Settings,
    State,
    Tick,
    Turn,
)

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
        case Request():
            requests.answer(turn, event)
        case Tick():
            pass
    _decide(turn)
    return turn.state, _finish(turn, state)


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
    turn.set(unannounced={}, early={})
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
    _decide(turn)
    return turn.state, _finish(turn, state)


def next_wake_s(state: State, now_s: float) -> float | None:
    """When to call ``step`` with a tick at the latest, in seconds; None: nothing is due."""
    if state.over:
        return None
    times = [one.deadline_s for one in state.migrations.values() if one.open and one.deadline_s]
    times += recovery.wakes_s(state)
    if any(policy.advises_move(one) for one in state.incidents.values()):
        times += list(state.cooldown.values())
    formation_s = formation.forms_at_s(state)
    if formation_s is not None:
        times.append(formation_s)
    return min((at_s for at_s in times if at_s > now_s), default=None)


def _decide(turn: Turn) -> None:
    """Everything the state calls for; repeated until nothing more follows."""
    for _ in range(8):
        before = turn.state
        if turn.state.over:
            turn.stop_everybody(turn.state.reason or f"the job has {turn.state.phase}")
            return
        formation.refuse_misfits(turn)
        formation.form(turn)
        for one in turn.state.migrations.values():
            if one.open:
                advance(turn, one.id, protocol.Tick())
        recovery.recover(turn)
        replan.announce_losses(turn)
        formation.warm_standbys(turn)
        policy.automate(turn)
        _finish_job(turn)
        if turn.state == before:
            return


def _finish_job(turn: Turn) -> None:
    state, membership = turn.state, turn.state.membership
    if membership is None or state.over:
        return
    flight = state.flight
    seats = [membership]
    if flight is not None and flight.plan is not None:
        seats.append(flight.plan.membership)
    for seat in seats:
        ranks = range(seat.layout.world_size)
        if all((seat.machine_of(rank), rank) in state.finished for rank in ranks):
            turn.set(phase="finished", reason="every rank's program ended normally")
            turn.publish(JobFinished(epoch=seat.epoch, step=state.step), id="job.finished")
            turn.stop_everybody("the job is finished")
            return


def _finish(turn: Turn, before: State) -> tuple[Command, ...]:
    after = turn.state
    if _outline(after) != _outline(before):
        turn.commands.append(SaveJob(requests.snapshot(after)))
    return tuple(turn.commands)


def _outline(state: State) -> tuple[object, ...]:
    phases: Mapping[str, Phase] = {one.id: one.phase for one in state.migrations.values()}
    inventory, deaths = state.inventory, state.deaths
    return (state.phase, state.membership, phases, inventory, deaths, state.control)
