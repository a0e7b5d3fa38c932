"""How many machines policy moves by itself within an hour, in all and for each rack or the like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from trainmover.job.plan import Plan
from trainmover_planner.rules.ruling import HOUR_S, labels_of
from trainmover_planner.state.state import Moved, State
from trainmover_planner.state.transition import Transition

__all__ = ["Spent", "exceeded", "note_moved", "spent"]


class Spent(NamedTuple):
    """How much of one budget is used.

    Attributes:
        what: Whose budget it is: empty for all machines, or ``rack=r12``.
        moves: Machines that policy moved within an hour.
        most: How many it may move.
        free_s: When the oldest of them no longer counts, in seconds; None where none does.
    """

    what: str
    moves: int
    most: int
    free_s: float | None


def note_moved(transition: Transition, plan: Plan) -> None:
    """Policy moves machines by itself."""
    state = transition.state
    now = [Moved(transition.now_s, labels_of(state, move.leaver)) for move in plan.moves]
    moved = (*_within_an_hour(state, transition.now_s), *now)
    transition.set(lately=replace(state.lately, moved=moved))


def spent(state: State, labels: Mapping[str, str], now_s: float) -> list[Spent]:
    """The budgets that a machine with these labels falls under."""
    policy, moved = state.policy, _within_an_hour(state, now_s)
    found = []
    if policy.moves_per_hour is not None:
        found.append(_spent("", moved, policy.moves_per_hour))
    for name, most in policy.moves_per_hour_by.items():
        if (value := labels.get(name)) is not None:
            alike = [one for one in moved if one.labels.get(name) == value]
            found.append(_spent(f"{name}={value}", alike, most))
    return found


def exceeded(state: State, machines: Iterable[str], now_s: float) -> Spent | None:
    """A budget that has no room for moving ``machines``, or None."""
    wanted: dict[str, tuple[Spent, int]] = {}
    for machine in machines:
        for one in spent(state, labels_of(state, machine), now_s):
            wanted[one.what] = (one, wanted.get(one.what, (one, 0))[1] + 1)
    return next((one for one, more in wanted.values() if one.moves + more > one.most), None)


def _within_an_hour(state: State, now_s: float) -> list[Moved]:
    return [one for one in state.lately.moved if one.at_s + HOUR_S > now_s]


def _spent(what: str, moved: list[Moved], most: int) -> Spent:
    return Spent(what, len(moved), most, moved[0].at_s + HOUR_S if moved else None)
