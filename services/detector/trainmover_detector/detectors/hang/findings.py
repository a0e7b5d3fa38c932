"""What is said of a hang: who holds the job up, how that is known, and what to do; pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainmover.detection import Finding
from trainmover.job.topology import Membership
from trainmover.telemetry.records import Phase
from trainmover_detector.measures.waits import Standstill, Waits, lost_on_the_way

__all__ = ["STOPPED", "Stay", "hang_of", "link_hangs", "phase_of"]

STOPPED: Final = {ord("T"): "stopped", ord("t"): "stopped", ord("D"): "waiting for a disk"}
"""States of a process in which it does nothing, as Linux names them in ``/proc/PID/stat``."""
_PHASES: Final = frozenset(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """For how long the job has stood still.

    Attributes:
        step: The step that does not end.
        still_s: Since it began, in seconds.
        patience_s: What the job's own steps explain, in seconds.
    """

    step: int
    still_s: float
    patience_s: float


def hang_of(
    ranks: list[int],
    now: Standstill,
    waits: Waits,
    stay: Stay,
    *,
    machine: str,
    limit_s: float,
    told: bool,
) -> Finding:
    """Ranks of one machine never entered what the others wait in.

    Args:
        ranks: Which.
        now: All that is known.
        waits: Who waits for whom.
        stay: For how long.
        machine: Whose ranks they are.
        limit_s: From when on the machine is to be treated as dead, in seconds.
        told: With the way from a rank that waits to the first of them.
    """
    rank = ranks[0]
    frozen = rank in now.stale
    pulse = next(iter(now.pulses[now.pulses["rank"] == rank]), None)
    state = int(pulse["state"]) if pulse is not None else 0
    known = None if pulse is None else phase_of(pulse)
    phase = "unknown" if known is None else known.name.lower()
    how = (
        f"its process is {STOPPED.get(state, 'frozen')}"
        if frozen
        else f"its process lives and is in phase {phase!r}"
    )
    evidence: dict[str, Any] = {
        "class": "non_communication_hang",
        "ranks": ranks,
        "frozen": frozen,
        "phase": phase,
        "process_state": chr(state) if state else None,
        "step": stay.step,
        "still_s": round(stay.still_s, 3),
        "patience_s": round(stay.patience_s, 3),
        "waiting_ranks": heapq.nsmallest(64, waits.lines),
        "chain": waits.chain_to(rank)[:16] if told else [],
    }
    return Finding(
        kind="hang",
        machine=machine,
        rank=rank,
        confidence=0.97 if frozen else 0.9,
        summary=f"{machine}: rank {rank} never entered what {len(waits.lines)} ranks wait in "
        f"since {stay.still_s:.1f} s (step {stay.step}); {how}",
        evidence=evidence,
        advice="recover" if stay.still_s >= limit_s else "none",
    )


def link_hangs(now: Standstill, waits: Waits, membership: Membership, stay: Stay) -> list[Finding]:
    """Everybody is in an operation, and nothing arrives.

    Args:
        now: All that is known.
        waits: Who waits for whom.
        membership: The job's machines and ranks.
        stay: For how long.
    """
    lost = set(lost_on_the_way(now))
    pairs = sorted({*waits.stuck, *lost})
    pairs = [pair for pair in pairs if pair in lost] or pairs
    evidence: dict[str, Any] = {
        "class": "communication_hang",
        "links": pairs[:64],
        "step": stay.step,
        "still_s": round(stay.still_s, 3),
        "open_operations": len(now.open),
    }
    if not pairs:
        if not set(now.open["rank"].tolist()) <= set(now.links["rank"].tolist()):
            return []  # what the links have to say is still to come
        summary = (
            f"every rank entered its operation and none has ended for {stay.still_s:.1f} s "
            f"(step {stay.step}); which link it is cannot be told"
        )
        return [Finding("link_hang", None, None, 0.6, summary, evidence)]
    machines = [{membership.machine_of(rank) for rank in pair} for pair in pairs]
    shared = set.intersection(*machines) if len(pairs) > 1 else set()
    if len(shared) == 1:
        (machine,) = shared
        summary = f"{machine}: nothing arrives over {len(pairs)} links of it"
        return [Finding("link_hang", machine, None, 0.85, summary, evidence)]
    return [
        Finding(
            "link_hang",
            None,
            None,
            0.9,
            f"rank {source} ({membership.machine_of(source)}) sent what rank {target} "
            f"({membership.machine_of(target)}) never got, for {stay.still_s:.1f} s",
            evidence,
            link=(source, target),
        )
        for source, target in pairs
    ]


def phase_of(pulse: np.void) -> Phase | None:
    """Where a rank says it is; None where it says nothing that there is."""
    value = int(pulse["phase"])
    return Phase(value) if value in _PHASES else None
