"""Whether what a machine says fits the job. Pure questions; empty answers are good ones.

The models of the events hold types and bounds. What a slot, a rank or an endpoint may be depends on
the job, and is checked where a fact becomes knowledge: later, each of them is an index.
"""

from __future__ import annotations

from typing import Final

from trainmover.events import executor, machine
from trainmover.job.topology import Layout

__all__ = ["LONGEST", "of_layout", "of_machine", "of_standby"]

LONGEST: Final = 2_000
"""Characters of a reason that are kept; a fact may hold millions."""

_MOST_RANKS: Final = 1_024
_MOST_SPANS: Final = 64


def of_machine(fact: machine.MachineRegistered) -> str:
    """Why a machine cannot be part of any job."""
    offered, count = fact.machine, len(fact.machine.endpoints)
    if not 1 <= count <= _MOST_RANKS:
        return f"machine {offered.name} offers {count} ranks; 1 to {_MOST_RANKS} are possible"
    return _endpoints(offered.name, offered.endpoints) or (
        f"machine {offered.name} says {fact.nnodes_min} slots of {fact.nnodes_max} machines"
        if fact.nnodes_min > fact.nnodes_max
        else ""
    )


def of_standby(fact: machine.MachineWarming | machine.MachineReady, layout: Layout) -> str:
    """Why a machine cannot be warm for what it says."""
    warm = fact.endpoints if isinstance(fact, machine.MachineWarming) else {fact.slot: None}
    for slot, endpoints in warm.items():
        if not 0 <= slot < layout.slots:
            return f"machine {fact.machine} is warm for slot {slot} of {layout.slots}"
        if endpoints is None:
            continue
        if len(endpoints) != layout.ranks_per_slot:
            return (
                f"machine {fact.machine} has {len(endpoints)} endpoints for slot {slot}, which has "
                f"{layout.ranks_per_slot} ranks"
            )
        if wrong := _endpoints(fact.machine, endpoints):
            return wrong
    return ""


def of_layout(fact: executor.JobLayoutKnown, layout: Layout) -> str:
    """Why a rank cannot hold what it says."""
    spans = fact.spans
    if len(spans) > _MOST_SPANS:
        return f"rank {fact.rank} names {len(spans)} spans of replicas; {_MOST_SPANS} are possible"
    if any(span[-1] >= layout.world_size for span in spans):
        return f"rank {fact.rank} has replicas outside of the job"
    if not any(fact.rank in span for span in spans):
        return f"rank {fact.rank} is none of its own replicas"
    return ""


def _endpoints(name: str, endpoints: tuple[str, ...]) -> str:
    longest = max(map(len, endpoints), default=0)
    if longest > _LONGEST_ENDPOINT:
        return f"machine {name} has an endpoint of {longest} characters"
    return ""


_LONGEST_ENDPOINT: Final = 300
