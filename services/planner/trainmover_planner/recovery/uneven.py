"""Ranks that do not take the same number of steps: some ended, and others ask for one more."""

from __future__ import annotations

from trainmover.job.topology import Membership
from trainmover_planner.machines.evidence import gone_slots
from trainmover_planner.state.state import State

__all__ = ["NEXT_STEP", "uneven"]

NEXT_STEP = (
    "Give every rank as many batches: shard the data with DistributedSampler, drop the rest "
    "(drop_last=True), or end all ranks by session.steps(..., max_steps=N)."
)
_SHOWN = 8


def uneven(state: State, membership: Membership, *, now_s: float) -> str:
    """Why the job cannot go on, for people; empty unless each rank either ended or waits.

    Args:
        state: The planner's state.
        membership: The ranks.
        now_s: The time: dead machines are heard of within ``regroup_s``, and are another matter.
    """
    ended = {rank for machine, rank in state.finished if membership.holds(machine, rank)}
    if not ended or gone_slots(state, membership):
        return ""
    found = [breaks for epoch, breaks in state.broken.items() if epoch >= membership.epoch]
    if any(now_s < breaks.last_s + state.regroup_s for breaks in found):
        return ""
    waiting = {
        rank
        for breaks in found
        for machine, rank in breaks.ranks
        if membership.holds(machine, rank)
    } - ended
    if not waiting or len(ended) + len(waiting) < membership.layout.world_size:
        return ""
    return (
        f"{_ranks(ended)} ended the program after {state.step} steps, and {_ranks(waiting)} asked "
        "for another step: ranks have different numbers of batches."
    )


def _ranks(numbers: set[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:_SHOWN]))
    more = ", ..." if len(numbers) > _SHOWN else ""
    return f"rank{'s' * (len(numbers) > 1)} {shown}{more}"
