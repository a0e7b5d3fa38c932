"""Rebalancing: the slowest machine is exchanged for a better standby, every so often.

The detector measures and names it; the incident then goes the way of every other that advises a
move, through rules, reserve, budgets and what the move is worth. What is decided here besides: how
often, what counts as better, and what is remembered of machines that were measured, so that none
comes back that is as slow as the one it would replace. Pure questions of the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from trainmover.events.incident import IncidentOpened, IncidentUpdated
from trainmover.policy.model import REBALANCE, SLOWEST, Rebalance
from trainmover.protocol.migration import Migration
from trainmover_planner.rules.ruling import bounded, judge
from trainmover_planner.rules.worth import lateness, lateness_in
from trainmover_planner.state.state import Exchange, State
from trainmover_planner.state.transition import Transition

__all__ = [
    "better_than",
    "cause_of",
    "forget",
    "is_rebalance",
    "note_exchange",
    "note_measured",
    "obstacle",
    "pace_of",
]

_REMEMBERED_S: Final = 86_400.0
"""A machine that was repaired proves itself anew after so long, as after other troubles."""

_AT_ONCE: Final = 2.5
"""What is found within so many intervals of an exchange is what was found before."""

_MOST: Final = 512
"""Machines whose lateness is remembered, and exchanges."""

_LOOKS: Final = 3
_FRESH_S: Final = 15.0
"""A finding that three looks did not repeat is one of a detector that is gone."""


def cause_of(incident: IncidentOpened) -> str:
    """Why a machine is moved because of ``incident``, for people.

    What a rebalance is called, no other detector's sentence may begin with.
    """
    if incident.kind == SLOWEST:
        return f"{REBALANCE}{incident.summary}"
    return incident.summary.removeprefix(REBALANCE)


def is_rebalance(one: Migration) -> bool:
    """Whether a migration exchanges a machine that is only slower than others."""
    return one.incident is not None and one.cause.startswith(REBALANCE)


def pace_of(state: State, machine: str, now_s: float) -> float | None:
    """How late a machine was when it was last measured, as a share of a step; None: not known."""
    known = state.lately.paces.get(machine)
    return known[0] if known is not None and known[1] > now_s - _REMEMBERED_S else None


def better_than(state: State, incident: IncidentOpened | None) -> float | None:
    """How late a joiner may have been measured, as a share of a step; None: it does not matter."""
    declared = state.policy.rebalance
    if declared is None or incident is None or incident.kind != SLOWEST:
        return None
    return (lateness(state, incident) or 0.0) - declared.least


def obstacle(state: State, incident: IncidentOpened, now_s: float) -> str:
    """Why the machine of a ``slowest`` incident is not exchanged now; empty where nothing is."""
    declared = state.policy.rebalance
    if declared is None:
        return "rebalancing is not declared"
    late = lateness(state, incident)
    if late is None or late < declared.least:
        return f"it is late by {late or 0.0:.1%} of a step; {declared.least:.1%} are asked"
    _, measured_s = state.lately.paces.get(incident.machine or "", (0.0, 0.0))
    if measured_s < now_s - max(_LOOKS * declared.every_s, _FRESH_S):
        return f"it was measured {now_s - measured_s:.0f} s ago, and not found again since"
    other = _also_found(state, incident, now_s)
    if other is not None:
        return f"{other.id} is about the same machine"
    before = _same_before(state, incident, late, declared)
    if before is not None:
        return (
            f"slot {before.slot} was late by {before.late:.1%} of a step with the machine before, "
            "too: it is not the machine"
        )
    return _spent(state, incident, declared, now_s)


def _also_found(state: State, incident: IncidentOpened, now_s: float) -> IncidentOpened | None:
    """Another incident that moves the machine, or asks to: then it is not only slower."""
    every: Iterable[IncidentOpened] = state.incidents.values()
    for one in every:
        if one.machine != incident.machine or one.kind == SLOWEST or one.mode != "active":
            continue
        decision = bounded(judge(state, one, now_s).decision, state.control.mode)
        if one.advice != "none" and decision != "ignore":
            return one
    return None


def _same_before(
    state: State, incident: IncidentOpened, late: float, declared: Rebalance
) -> Exchange | None:
    """The exchange that changed nothing: the slot's work, not its machine, is slow."""
    here = [one for one in state.lately.exchanged if one.slot == incident.slot]
    opened_s = state.lately.opened.get(incident.id)
    if not here or opened_s is None:
        return None
    same = abs(here[-1].late - late) < declared.least
    return here[-1] if same and opened_s < here[-1].at_s + _AT_ONCE * declared.every_s else None


def _spent(state: State, incident: IncidentOpened, declared: Rebalance, now_s: float) -> str:
    times = [one for one in state.lately.exchanged if one.at_s + declared.every_s > now_s]
    asked = [one for one in state.waiting if is_rebalance(one) and one.incident != incident.id]
    if len(times) + len(asked) < declared.at_most:
        return ""
    words = f"{len(times)} of at most {declared.at_most} exchanged within {declared.every_s:g} s"
    return f"{words}, and {len(asked)} wait for an operator" if asked else words


def note_measured(transition: Transition, fact: IncidentOpened | IncidentUpdated) -> None:
    """The detector says how late the slowest machine is."""
    state, now_s = transition.state, transition.now_s
    incident = fact if isinstance(fact, IncidentOpened) else state.incidents.get(fact.id)
    late = lateness_in(fact.evidence)
    if incident is None or incident.kind != SLOWEST or incident.machine is None or late is None:
        return
    if incident.mode != "active" or state.inventory.get(incident.machine) is None:
        return
    paces = state.lately.paces.drop(incident.machine).put(incident.machine, (late, now_s))
    if len(paces) > _MOST:
        paces = paces.drop(next(iter(paces)))
    transition.set(lately=replace(state.lately, paces=paces))


def forget(transition: Transition, machine: str) -> None:
    """An operator let a machine back in: what was measured before counts no more."""
    lately = transition.state.lately
    if machine in lately.paces:
        transition.set(lately=replace(lately, paces=lately.paces.drop(machine)))


def note_exchange(transition: Transition, one: Migration) -> None:
    """A machine is being exchanged, whoever agreed to it."""
    if is_rebalance(one):
        lately, now_s = transition.state.lately, transition.now_s
        late = pace_of(transition.state, one.leaver, now_s) or 0.0
        exchanged = (*lately.exchanged, Exchange(now_s, one.slot, late))[-_MOST:]
        transition.set(lately=replace(lately, exchanged=exchanged))
