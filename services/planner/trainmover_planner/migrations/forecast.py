"""What a drain takes: standbys, waves, and time by what moves of this job took before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainmover.protocol.table import Phase
from trainmover_planner.machines.assignment import standbys
from trainmover_planner.state.state import State

__all__ = ["Need", "forecast", "need_of"]


class Need(NamedTuple):
    """What draining machines takes.

    Attributes:
        slots: Slots that have to be filled by others.
        standbys: Standbys that could fill them, less the reserve.
        at_once: How many can change hands at once.
    """

    slots: int
    standbys: int
    at_once: int


def need_of(state: State, machines: Sequence[str]) -> Need:
    """What draining ``machines`` takes now."""
    membership = state.membership
    if membership is None:
        return Need(0, 0, 0)
    slots = sum(membership.slot_of_machine(name) is not None for name in machines)
    drained = set(machines)
    spare = sum(host.machine.name not in drained for host in standbys(state))
    free = max(spare - state.policy.keep_reserve, 0)
    return Need(slots, free, min(membership.layout.third, free))


def forecast(state: State, machines: Sequence[str], deadline_s: float | None) -> str:
    """What is to be expected, for people; what cannot be held is said."""
    need = need_of(state, machines)
    lacking = max(need.slots - need.standbys, 0)
    most = max(min(need.at_once, need.slots), 1)
    waves = math.ceil(need.slots / most)
    words = [f"{len(machines)} machines, {need.slots} of them in slots: {waves} waves of {most}"]
    took_s = _measured_s(state)
    if took_s is not None:
        words.append(f"about {waves * took_s:.0f} s at {took_s:.1f} s a wave, the slowest so far")
    if lacking:
        words.append(
            f"{lacking} of them wait until standbys are added: {need.standbys} are there beyond "
            f"the reserve of {state.policy.keep_reserve}"
        )
    if deadline_s is not None:
        words.append(_of_deadline(deadline_s, waves, took_s, lacking=lacking))
    return "; ".join(words)


def _of_deadline(deadline_s: float, waves: int, took_s: float | None, *, lacking: int) -> str:
    if lacking:
        return f"the deadline in {deadline_s:.0f} s cannot be held without more standbys"
    if took_s is None:
        return "whether the deadline can be held is not known: no move of this job was measured"
    if waves * took_s > deadline_s:
        return f"the deadline in {deadline_s:.0f} s cannot be held"
    return f"the deadline in {deadline_s:.0f} s can be held"


def _measured_s(state: State) -> float | None:
    """How long the slowest planned move of this job took that is remembered, in seconds."""
    took = []
    for one in state.migrations.values():
        times = dict(one.history)
        if one.kind == "planned" and one.phase is Phase.COMMITTED and Phase.APPROVED in times:
            took.append(times[Phase.COMMITTED] - times[Phase.APPROVED])
    return max(took, default=None)
