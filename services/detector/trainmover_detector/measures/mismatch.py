"""Are ranks in different operations of one group? A bug in the program, not in a machine; pure."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainmover.detection import Finding
from trainmover.job.topology import Membership
from trainmover.telemetry.records import OPS
from trainmover_detector.measures.waits import Standstill

__all__ = ["find_mismatch"]

_SAME_BYTES: Final = frozenset(
    OPS.index(name) for name in ("allreduce", "reduce_scatter", "all_gather", "broadcast", "vote")
)
"""Operations whose ranks all pass as many bytes."""

_NAMED: Final = 8


def find_mismatch(now: Standstill, membership: Membership) -> Finding | None:
    """The first group in which ranks entered different things under the same number."""
    places: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for rank, group, sequence, op, nbytes in _that_differ(now.open):
        what = (op, nbytes if op in _SAME_BYTES else -1)
        places.setdefault((group, sequence), {})[rank] = what
    for (group, sequence), what_by_rank in sorted(places.items(), key=lambda each: each[0][1]):
        votes = Counter(what_by_rank.values()).most_common()
        if len(votes) < 2:
            continue
        usual = votes[0][0]
        tied = votes[0][1] == votes[1][1]
        if tied and len(what_by_rank) < sum(map(len, now.groups.get(group, ()))):
            continue  # the others have not been heard in it yet: they will tell who is odd
        odd = sorted(rank for rank, what in what_by_rank.items() if what != usual)
        return _finding(group, sequence, what_by_rank, [] if tied else odd, membership)
    return None


def _that_differ(open_: npt.NDArray[np.void]) -> list[tuple[int, int, int, int, int]]:
    """(rank, group, sequence, op, bytes) wherever ranks are in different things."""
    every = open_[open_["peer"] < 0]
    nbytes = np.where(np.isin(every["op"], [*_SAME_BYTES]), every["bytes"], 0)
    place = np.stack([every["group"].astype(np.int64), every["sequence"].astype(np.int64)])
    _, where = np.unique(place, axis=1, return_inverse=True)
    where = where.reshape(-1)
    odd = np.zeros(len(every), bool)
    for what in (every["op"].astype(np.int64), nbytes.astype(np.int64)):
        least = np.full(len(every), np.iinfo(np.int64).max)
        most = np.full(len(every), np.iinfo(np.int64).min)
        np.minimum.at(least, where, what)
        np.maximum.at(most, where, what)
        odd |= (least < most)[where]
    found: list[tuple[int, int, int, int, int]] = every[
        ["rank", "group", "sequence", "op", "bytes"]
    ][odd].tolist()
    return found


def _finding(
    group: int,
    sequence: int,
    what_by_rank: dict[int, tuple[int, int]],
    odd: list[int],
    membership: Membership,
) -> Finding:
    said: dict[str, list[int]] = {}
    for rank, (op, nbytes) in sorted(what_by_rank.items()):
        known = OPS[op] if 0 <= op < len(OPS) else f"operation {op}"
        name = known + (f" of {nbytes} bytes" if nbytes >= 0 else "")
        said.setdefault(name, []).append(rank)
    words = "; ".join(f"ranks {_some(ranks)} are in {name}" for name, ranks in said.items())
    evidence: dict[str, Any] = {
        "group": f"{group:08x}",
        "sequence": sequence,
        "ranks_by_operation": said,
        "odd_ranks": odd,
    }
    one = odd[0] if len(odd) == 1 else None
    return Finding(
        kind="mismatch",
        machine=membership.machine_of(one) if one is not None else None,
        rank=one,
        confidence=0.95,
        summary=f"the program's ranks part at operation {sequence} of group {group:08x}: {words}",
        evidence=evidence,
    )


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
