"""How a pool stands, for people. Pure."""

from __future__ import annotations

from trainmover.commands import ASSIGN_WITHIN_S
from trainmover.protocol.requests import PoolJobStatus, PoolMachineStatus, PoolStatus
from trainmover_pool.decide import failures, idle
from trainmover_pool.state import HOLD_S, Machine, State
from trainmover_pool.tally import Tally, tallies

__all__ = ["snapshot"]


def snapshot(state: State, now_s: float) -> PoolStatus:
    """The machines of the pool, its jobs, and what each waits for."""
    book = tallies(state, now_s)
    free = len(idle(state, now_s))
    return PoolStatus(
        pool=state.pool,
        term=state.term,
        machines=tuple(_machine(state, state.machines[n], now_s) for n in sorted(state.machines)),
        jobs=tuple(
            _job(state, one, free=free) for one in sorted(book.values(), key=lambda t: t.rank)
        ),
        problems=state.problems,
    )


def _machine(state: State, one: Machine, now_s: float) -> PoolMachineStatus:
    silent_s = now_s - one.at_s
    silent = silent_s > ASSIGN_WITHIN_S + HOLD_S
    words = ""
    promise, recall = state.promises.get(one.name), state.recalls.get(one.name)
    if promise is not None:
        words = f"asked to serve {promise.job}"
    elif recall is not None and recall.refused:
        words = f"{recall.job} does not let it go: {recall.refused}"
    elif recall is not None:
        words = f"recalled from {recall.job}" + (
            f" for {recall.needed_by}" if recall.needed_by else ""
        )
    elif one.seen.declines:
        words = "; ".join(f"not for {job}: {why}" for job, why in one.seen.declines.items())
    return PoolMachineStatus(
        machine=one.name,
        phase="silent" if silent else one.seen.phase,
        job=one.seen.job,
        role=state.role_of(one),
        for_s=max(0.0, silent_s if silent else now_s - one.since_s),
        words=words,
        labels=one.seen.labels,
    )


def _job(state: State, tally: Tally, *, free: int) -> PoolJobStatus:
    status = tally.status
    return PoolJobStatus(
        job=tally.job,
        phase="unknown" if status is None else status.phase,
        priority=tally.share.priority,
        wanted=tally.share.wanted,
        quota=tally.share.quota,
        machines=tally.used,
        standbys=tally.have,
        missing=tally.missing,
        words=_words(state, tally, free=free),
    )


def _words(state: State, tally: Tally, *, free: int) -> str:
    """What a job waits for, and why it does not have it."""
    if tally.status is None:
        return "its planner does not answer: nothing is changed for it"
    lacks = tally.waits or tally.wants
    coming = sum(one.needed_by == tally.job for one in state.recalls.values() if not one.refused)
    if not lacks:
        under_way = tally.missing or any(one.job == tally.job for one in state.promises.values())
        return "a machine is on its way" if under_way else ""
    what = f"waits for {tally.waits}" if tally.waits else f"lacks {tally.wants}"
    what = f"{what} machine{'s' * (lacks != 1)}"
    why = "no machine is idle"
    if tally.room < 1:
        why = f"its quota of {tally.share.quota} is used"
    elif coming:
        why = f"{coming} recalled for it"
    elif failed := failures(state, tally.job):
        why = f"{failed} machines could not serve it, see their output"
    elif free:
        why = "the idle machines are about to hear of it"
    elif tally.waits:
        why = "no machine is idle, and no standby of a lower priority can be recalled"
    return f"{what}: {why}"
