"""Whether a planned move pays: the pause it is expected to cost, the training time it saves.

Pauses are predicted from those of earlier planned moves of the job, each the longest of any rank.
Before the first one they are assumed, from the size of what is handed over. What is saved is how
late the machine is times how long it would stay so, as declared. Facts of ranks are counted as they
come; a forecast looks at a few numbers, whatever the size of the job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from trainmover.events.executor import StepResumed, WorkerCosts
from trainmover.events.incident import IncidentOpened, IncidentUpdated
from trainmover.job.plan import Forecast
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = ["foresee", "lateness", "lateness_in", "note_late", "note_pause", "note_size"]

_REMEMBERED: Final = 32
"""So many pauses tell more of what is to come than all that ever were."""

_LONGEST_S: Final = 86_400.0
"""Who says that it paused for longer has measured nothing."""

_ENOUGH: Final = 9
"""Of fewer pauses, the largest is within nine of ten of what is to come too seldom."""

_COLD_S: Final = 1.0
_COLD_MOST_S: Final = 10.0
_COLD_BYTES_S: Final = 1e9
"""What is assumed before the first move: the state is copied while training stands still, over a
link of a gigabyte a second. Where the joiner follows it, as it mostly does, pauses are shorter."""


def foresee(
    state: State,
    slots: Iterable[int],
    incident: IncidentOpened | None = None,
    *,
    kept: float = 0.0,
) -> Forecast:
    """What a planned move of ``slots`` is expected to cost, and to save.

    Args:
        state: The planner's state.
        slots: The slots that change hands, in one switch.
        incident: What a detector found about the machine; nothing else says what is saved.
        kept: How late the joiner is known to be, as a share of a step: that much is not saved.
    """
    size = _largest(state, slots)
    usual_s, most_s = _pause_s([pause_s for _, pause_s in state.lately.pauses], size)
    late = None if incident is None else lateness(state, incident)
    if late is not None:
        late = max(late - kept, 0.0)
    horizon_s = state.policy.horizon_s
    return Forecast(
        pause_s=usual_s,
        pause_most_s=most_s,
        measured=len(state.lately.pauses),
        state_bytes=size,
        lateness=late,
        horizon_s=horizon_s,
        gain_s=None if late is None else late * horizon_s,
    )


def note_pause(transition: Transition, fact: StepResumed) -> None:
    """A rank says how long it paused for a migration; the longest of a planned one counts."""
    one = transition.state.migrations.get(fact.migration)
    if one is None or one.kind != "planned" or not 0 <= fact.pause_s <= _LONGEST_S:
        return
    lately = transition.state.lately
    known = dict(lately.pauses)
    if known.get(fact.migration, -1.0) >= fact.pause_s:
        return
    pauses = known | {fact.migration: fact.pause_s}
    transition.set(lately=replace(lately, pauses=tuple(pauses.items())[-_REMEMBERED:]))


def note_size(transition: Transition, fact: WorkerCosts) -> None:
    """A rank says how large its state is."""
    if fact.state_bytes:
        lately = transition.state.lately
        sizes = lately.sizes.put(fact.rank, fact.state_bytes)
        transition.note(lately=replace(lately, sizes=sizes))


def note_late(transition: Transition, fact: IncidentUpdated) -> None:
    """A detector says more of an open incident: a move that did not pay may pay now."""
    state, late = transition.state, lateness_in(fact.evidence)
    incident = state.incidents.get(fact.id)
    if incident is None or incident.advice != "move" or late is None:
        return
    if late != lateness(state, incident):
        transition.set(lately=replace(state.lately, late=state.lately.late.put(fact.id, late)))


def lateness(state: State, incident: IncidentOpened) -> float | None:
    """How late the machine of an open incident is, as a share of a step; None: nobody says."""
    found: float | None = state.lately.late.get(incident.id)
    return lateness_in(incident.evidence) if found is None else found


def lateness_in(evidence: Mapping[str, Any]) -> float | None:
    """How late a machine is by a finding's evidence, as a share of a step."""
    said = evidence.get("lateness")
    if isinstance(said, bool) or not isinstance(said, int | float) or not math.isfinite(said):
        return None
    return min(max(float(said), 0.0), 1.0)


def _largest(state: State, slots: Iterable[int]) -> int:
    membership = state.membership
    if membership is None:
        return 0
    ranks = (rank for slot in slots for rank in membership.layout.ranks_of(slot))
    return max((state.lately.sizes.get(rank, 0) for rank in ranks), default=0)


def _pause_s(measured: list[float], size: int) -> tuple[float, float]:
    """A pause that is as likely exceeded as not, and one that nine of ten stay within."""
    count = len(measured)
    if count == 0:
        return _COLD_S, _COLD_MOST_S + size / _COLD_BYTES_S
    ordered = sorted(measured)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    if count < _ENOUGH:
        return middle, ordered[-1] * (1 + 1 / count)
    return middle, ordered[math.ceil(0.9 * (count + 1)) - 1]
