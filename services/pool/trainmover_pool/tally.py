"""How the jobs of a pool stand next to what they should have. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from trainmover.commands import ASSIGN_WITHIN_S
from trainmover.policy.sharing import JobShare
from trainmover.protocol.requests import StandbysStatus
from trainmover_pool.state import ARRIVE_S, HOLD_S, Machine, State

__all__ = ["NOBODYS", "Tally", "is_dead", "may_take", "tallies"]

NOBODYS: Final = JobShare(agent=("--", "-"), priority=-1000, wanted=0, quota=0)
"""The share of a job that is not declared any more: nothing."""

_THERE: Final = frozenset({"ready", "warming"})


@dataclass(slots=True)
class Tally:
    """One job, while decisions are taken.

    Attributes:
        share: What is declared.
        status: What its planner said lately; None while nobody knows.
        used: Machines of the pool that serve it, or may turn out to.
        have: Standbys that it has or that are about to come, its own ones included.
        room: Machines of the pool that its quota leaves.
    """

    job: str
    share: JobShare
    status: StandbysStatus | None
    used: int
    have: int
    room: float

    @property
    def runs(self) -> bool:
        """Whether it is known to be able to use a machine."""
        return self.status is not None and self.status.phase in ("running", "held")

    @property
    def missing(self) -> int:
        """Slots without a machine."""
        return self.status.missing if self.status is not None and self.runs else 0

    @property
    def waits(self) -> int:
        """Machines that it cannot go on without, and that are not about to come."""
        return max(0, self.missing - self.have)

    @property
    def wants(self) -> int:
        """Standbys that it lacks."""
        if not self.runs:
            return 0
        return max(0, self.share.wanted - max(0, self.have - self.missing))

    @property
    def many(self) -> int:
        """Standbys that it has beyond what it should: by its wish, or by its quota."""
        if self.status is None:
            return 0
        over = 0 if self.share.quota is None else max(0, self.used - self.share.quota)
        beyond = max(0, self.have - self.missing - self.share.wanted) if self.runs else 0
        return max(over, beyond)

    @property
    def load(self) -> float:
        """Its share of the pool next to what it wants."""
        return self.used / max(1, self.share.wanted)

    @property
    def rank(self) -> tuple[int, float, str]:
        """Sorts those first that come first."""
        return -self.share.priority, self.load, self.job

    def take(self) -> None:
        """Count one machine more."""
        self.used, self.have, self.room = self.used + 1, self.have + 1, self.room - 1


def tallies(state: State, now_s: float) -> dict[str, Tally]:
    """All jobs that are declared or served, by name."""
    shares = {} if state.sharing is None else dict(state.sharing.jobs)
    for machine in state.machines.values():
        if machine.seen.job is not None:
            shares.setdefault(machine.seen.job, NOBODYS)
    doubt = sum(may_take(one, state, now_s) for one in state.machines.values())
    return {job: _tally(state, job, share, doubt, now_s) for job, share in shares.items()}


def _tally(state: State, job: str, share: JobShare, doubt: int, now_s: float) -> Tally:
    status = state.view_of(job, now_s)
    serving = [one for one in state.machines.values() if one.seen.job == job]
    promised = sum(one.job == job for one in state.promises.values())
    used = promised + sum(not is_dead(one, state) for one in serving)
    have = promised + (0 if status is None else status.standbys)
    for one in serving:
        recall = state.recalls.get(one.name)
        goes = recall is not None and recall.job == job and not recall.refused
        if goes and state.role_of(one) in _THERE:
            have -= 1  # its planner still counts it, or did when it was asked
        elif not goes and _arrives(one, state, now_s):
            have += 1
    have -= sum(state.is_ghost(one, job) for one in state.machines.values())
    room = math.inf if share.quota is None else share.quota - used - doubt
    return Tally(job, share, status, used, max(0, have), room)


def may_take(machine: Machine, state: State, now_s: float) -> bool:
    """Whether an order of an earlier leader may still be under way to a machine that would obey."""
    lately = now_s - machine.at_s <= ASSIGN_WITHIN_S + HOLD_S
    return machine.seen.term < state.term and machine.seen.phase == "idle" and lately


def is_dead(machine: Machine, state: State) -> bool:
    """Whether it says nothing any more, and its job does not have it either."""
    silent_s = math.inf if state.sharing is None else state.sharing.silent_s
    silent = state.heard_s - machine.at_s > silent_s
    return silent and state.role_of(machine) in (None, "gone")


def _arrives(machine: Machine, state: State, now_s: float) -> bool:
    """Whether a machine serves a job whose planner does not know of it yet."""
    if machine.arrived or state.role_of(machine) in _THERE:
        return False
    lately = now_s - machine.at_s <= ASSIGN_WITHIN_S + HOLD_S
    return lately and machine.seen.phase == "serving" and now_s - machine.since_s <= ARRIVE_S
