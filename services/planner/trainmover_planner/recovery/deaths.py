"""Who is dead, and whom a detector's advice ends: evidence, or an opinion that policy lets pass."""

from __future__ import annotations

from trainmover.events import incident
from trainmover.job.topology import Membership
from trainmover_planner.machines import choice, condemn
from trainmover_planner.migrations.migrations import base_of
from trainmover_planner.migrations.policy import stale
from trainmover_planner.rules.ruling import HOUR_S
from trainmover_planner.state import shapes
from trainmover_planner.state.inventory import Incarnation, incarnation_of
from trainmover_planner.state.state import Death, State, slot_of
from trainmover_planner.state.transition import Transition

__all__ = ["condemn_ripe", "condemned", "died", "incarnation_at", "remember", "running_memberships"]


def condemn_ripe(transition: Transition) -> None:
    """Let opinions pass that policy did not let pass when they came: time passed, or it changed.

    What was refused for the budget of such ends is a person's to decide, and stays so.
    """
    for opened in transition.state.incidents.values():
        if not condemn.recommends_end(opened) or condemn.is_death(opened):
            continue
        said = (opened.id, condemn.BUDGET) in transition.state.said
        if not said and not stale(transition.state, opened):
            condemned(transition, opened)


def condemned(transition: Transition, opened: incident.IncidentOpened) -> None:
    """A detector wants a machine ended: it is, if that is evidence, or within the limits."""
    state = transition.state
    incarnation = _accused(state, opened)
    if incarnation is None or incarnation in state.deaths or _has_finished(state, incarnation):
        return
    code, _ = condemn.refusal(state, opened, transition.now_s)
    if code:
        return  # policy says so
    if not condemn.is_death(opened):
        _count_end(transition)
    died(transition, incarnation, reason=opened.summary, incident=opened.id)


def remember(transition: Transition, incarnation: Incarnation, *, reason: str) -> None:
    """An earlier planner gave up a machine of the job, for something that only time let pass."""
    state = transition.state
    if incarnation in state.deaths:
        return
    if all(slot_of(one, incarnation) is None for one in running_memberships(state)):
        return
    why = (one for one in state.incidents.values() if one.machine == incarnation[0])
    opened = next((one for one in why if condemn.recommends_end(one)), None)
    if opened is not None and not condemn.is_death(opened):
        _count_end(transition)
    died(transition, incarnation, reason=reason, incident=opened and opened.id)


def _count_end(transition: Transition) -> None:
    lately = (at_s for at_s in transition.state.fenced if at_s > transition.now_s - HOUR_S)
    transition.note(fenced=(*lately, transition.now_s))


def died(
    transition: Transition, incarnation: Incarnation, *, reason: str, incident: str | None
) -> None:
    """Give an incarnation up; ``incident`` is what says that it is dead, if one does."""
    if incarnation not in transition.state.deaths:
        if incident is None:
            choice.note_trouble(transition, incarnation[0])
        transition.set(
            deaths=transition.state.deaths.put(
                incarnation, Death(transition.now_s, reason[: shapes.LONGEST], incident)
            ),
            unsaid=(*transition.state.unsaid, incarnation),
        )


def running_memberships(state: State) -> list[Membership]:
    """Memberships that a machine may be running in right now."""
    if state.membership is None:
        return []
    return [state.membership, base_of(state), *state.current_memberships[1:]]


def incarnation_at(state: State, name: str, epoch: int) -> Incarnation | None:
    """The incarnation in which a machine had its slot at ``epoch``, else its latest one.

    None where the epoch is over for so long that nobody knows.
    """
    membership = state.memberships.get(epoch)
    slot = None if membership is None else membership.slot_of_machine(name)
    if membership is not None and slot is not None:
        return incarnation_of(membership.members[slot])
    if membership is None and 0 < epoch < min(state.memberships, default=0):
        return None
    host = state.inventory.get(name)
    return None if host is None else host.incarnation


def _accused(state: State, opened: incident.IncidentOpened) -> Incarnation | None:
    """The incarnation that an incident means: it names an epoch, not a generation."""
    return incarnation_at(state, opened.machine or "", opened.epoch)


def _has_finished(state: State, incarnation: Incarnation) -> bool:
    for membership in running_memberships(state):
        slot = slot_of(membership, incarnation)
        if slot is not None:
            ranks = membership.layout.ranks_of(slot)
            return all((incarnation[0], rank) in state.finished for rank in ranks)
    return False
