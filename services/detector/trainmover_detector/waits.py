"""Who waits for whom while a job stands still, and who waits for nobody; pure.

Every rank that says it is inside an operation waits for the members of that group which have not
entered it. Following these waits leads through tensor, pipeline and data parallel groups to the
ranks that wait for nobody: they are the cause, everybody before them in the chain is a victim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry import OPS, Phase

__all__ = ["Standstill", "Waits", "find_waits"]

_RECV: Final = OPS.index("recv")
_SEND: Final = OPS.index("send")

Records = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Standstill:
    """All that is known about a job that makes no step.

    Attributes:
        open: Operations that run, of all ranks, dtype ``RECORD``.
        pulses: Latest sign of life of each rank, dtype ``PULSE``.
        links: Counters of links, dtype ``LINK``.
        issued: Number of collectives that each rank has entered, by (group, rank).
        groups: Ranks of each group.
        stale: Ranks whose process says nothing although its machine does.
    """

    open: Records
    pulses: Records
    links: Records
    issued: Mapping[tuple[int, int], int]
    groups: Mapping[int, Sequence[range]]
    stale: frozenset[int]


@dataclass(frozen=True, slots=True)
class Waits:
    """The graph.

    Attributes:
        edges: For each rank that waits, whom it waits for.
        roots: Ranks that are waited for and wait for nobody.
        why: For each edge, in words.
        stuck: (sending, receiving rank) of messages that were sent and did not arrive.
    """

    edges: Mapping[int, frozenset[int]]
    roots: tuple[int, ...]
    why: Mapping[tuple[int, int], str] = field(default_factory=dict)
    stuck: tuple[tuple[int, int], ...] = ()

    def chain_to(self, root: int) -> list[str]:
        """The longest of the shortest chains of waits that end at ``root``, in words."""
        behind: dict[int, list[int]] = {}
        for rank, others in self.edges.items():
            for other in others:
                behind.setdefault(other, []).append(rank)
        came: dict[int, int] = {}
        seen, line, last = {root}, deque([root]), root
        while line:
            last = line.popleft()
            for rank in sorted(behind.get(last, ())):
                if rank not in seen:
                    seen.add(rank)
                    came[rank] = last
                    line.append(rank)
        words = []
        while last != root:
            words.append(f"rank {last} waits for rank {came[last]} {self.why[last, came[last]]}")
            last = came[last]
        return words


def find_waits(now: Standstill) -> Waits:
    """Build the graph of a job that stands still."""
    edges: dict[int, set[int]] = {}
    why: dict[tuple[int, int], str] = {}
    stuck: list[tuple[int, int]] = []
    arrived = _arrived(now.links)

    def wait(rank: int, other: int, reason: str) -> None:
        if rank != other:
            edges.setdefault(rank, set()).add(other)
            why.setdefault((rank, other), reason)

    entered = {
        (int(one["group"]), int(one["rank"]), int(one["sequence"]))
        for one in now.open
        if one["peer"] < 0
    }
    messages = {
        (int(one["rank"]), int(one["peer"]), int(one["op"]), int(one["sequence"]))
        for one in now.open
        if one["peer"] >= 0
    }
    for one in now.open:
        rank, group, op = int(one["rank"]), int(one["group"]), int(one["op"])
        peer, sequence = int(one["peer"]), int(one["sequence"])
        if rank in now.stale:
            continue
        if peer >= 0:
            both = (peer, rank, _SEND if op == _RECV else _RECV, sequence) in messages
            source, target = (peer, rank) if op == _RECV else (rank, peer)
            if both or arrived.get((source, target), True) is False:
                stuck.append((source, target))
            else:
                wait(rank, peer, f"in {OPS[op]} {sequence} between them")
            continue
        for span in now.groups.get(group, ()):
            for member in span:
                known = now.issued.get((group, member))
                there = (group, member, sequence) in entered
                # One that does not say how far it is is in no operation at all.
                if member in now.stale or (not there and (known is None or known <= sequence)):
                    wait(rank, member, f"in {OPS[op]} {sequence} of group {group:08x}")
    _wait_in_votes(now, edges, wait_in=wait)
    waited_for = {other for others in edges.values() for other in others}
    roots = sorted(r for r in waited_for if r in now.stale or not edges.get(r))
    return Waits(
        edges={rank: frozenset(others) for rank, others in edges.items()},
        roots=tuple(roots),
        why=why,
        stuck=tuple(sorted(set(stuck))),
    )


def _wait_in_votes(now: Standstill, edges: dict[int, set[int]], *, wait_in: object) -> None:
    """Ranks that vote and show no operation wait for whoever does not vote yet."""
    assert callable(wait_in)  # noqa: S101 - a local function of the only caller
    busy = set(now.open["rank"].tolist())
    voting = {
        int(pulse["rank"]): int(pulse["step"])
        for pulse in now.pulses
        if pulse["phase"] == Phase.VOTE and int(pulse["rank"]) not in now.stale
    }
    for rank, step in voting.items():
        if rank in busy or edges.get(rank):
            continue
        for pulse in now.pulses:
            other = int(pulse["rank"])
            behind = other not in voting and int(pulse["step"]) <= step
            if behind or other in now.stale:
                wait_in(rank, other, f"in the vote on step {step}")


def _arrived(links: Records) -> dict[tuple[int, int], bool]:
    """For each (sending, receiving) pair whose two ends are known: did everything arrive?"""
    sent: dict[tuple[int, int, int], tuple[int, int]] = {}
    got: dict[tuple[int, int, int], tuple[int, int]] = {}
    for one in links:
        rank, peer, group = int(one["rank"]), int(one["peer"]), int(one["group"])
        out, back = (rank, peer, group), (peer, rank, group)
        sent[out] = _most(sent.get(out), one["sent_messages"], one["sent_bytes"])
        got[back] = _most(got.get(back), one["received_messages"], one["received_bytes"])
    found: dict[tuple[int, int], bool] = {}
    for key, (messages, nbytes) in sent.items():
        if key in got:
            whole = messages <= got[key][0] and nbytes <= got[key][1]
            found[key[:2]] = found.get(key[:2], True) and whole
    return found


def _most(known: tuple[int, int] | None, messages: int, nbytes: int) -> tuple[int, int]:
    before = known or (0, 0)
    return before[0] + int(messages), before[1] + int(nbytes)


def lost_on_the_way(now: Standstill) -> list[tuple[int, int]]:
    """Links on which more was sent than arrived, by (sending, receiving rank)."""
    return sorted(pair for pair, whole in _arrived(now.links).items() if not whole)
