"""Who waits for whom while a job stands still, and who waits for nobody; pure.

Every rank that says it is inside an operation waits for the members of that group which have not
entered it. Following these waits leads through tensor, pipeline and data parallel groups to the
ranks that wait for nobody: they are the cause, everybody before them in the chain is a victim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import OPS, Phase

__all__ = ["Standstill", "Waits", "find_waits"]

_RECV: Final = OPS.index("recv")
_SEND: Final = OPS.index("send")
_LOOKS: Final = 16
"""So often the graph looks at every rank, at most."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """Whom several ranks wait for together; one for all of them, or a large job has millions.

    Attributes:
        others: Who is waited for.
        why: In words.
    """

    others: frozenset[int]
    why: str


@dataclass(frozen=True, slots=True)
class Waits:
    """The graph.

    Attributes:
        lines: For each rank that waits, whom it waits for.
        roots: Ranks that are waited for and wait for nobody.
        stuck: (sending, receiving rank) of messages that were sent and did not arrive.
    """

    lines: Mapping[int, Sequence[Wait]]
    roots: tuple[int, ...]
    stuck: tuple[tuple[int, int], ...] = ()

    def chain_to(self, root: int) -> list[str]:
        """The longest of the shortest chains of waits that end at ``root``, in words."""
        waiting: dict[Wait, list[int]] = {}
        for rank, waits in sorted(self.lines.items()):
            for wait in waits:
                waiting.setdefault(wait, []).append(rank)
        named: dict[int, list[Wait]] = {}
        for wait in waiting:
            for other in wait.others:
                named.setdefault(other, []).append(wait)
        came: dict[int, tuple[int, str]] = {}
        seen, line, last = {root}, deque([root]), root
        while line:
            last = line.popleft()
            for wait in named.pop(last, ()):
                # Whoever waits so has been reached once anybody was who is waited for.
                for rank in waiting.pop(wait, ()):
                    if rank not in seen:
                        seen.add(rank)
                        came[rank] = (last, wait.why)
                        line.append(rank)
        words = []
        while last != root:
            other, why = came[last]
            words.append(f"rank {last} waits for rank {other} {why}")
            last = other
        return words


def find_waits(now: Standstill) -> Waits:
    """Build the graph of a job that stands still."""
    lines: dict[int, list[Wait]] = {}
    stuck: set[tuple[int, int]] = set()
    arrived = _arrived(now.links)
    together: dict[tuple[int, int, int], list[int]] = {}
    messages: dict[tuple[int, int, int, int], None] = {}
    for one in now.open[["rank", "group", "op", "peer", "sequence"]].tolist():
        rank, group, op, peer, sequence = one
        if peer >= 0:
            messages[rank, peer, op, sequence] = None
        else:
            together.setdefault((sequence, group, op), []).append(rank)
    for rank, peer, op, sequence in messages:
        if rank in now.stale:
            continue
        both = (peer, rank, _SEND if op == _RECV else _RECV, sequence) in messages
        source, target = (peer, rank) if op == _RECV else (rank, peer)
        if both or arrived.get((source, target), True) is False:
            stuck.add((source, target))
        elif rank != peer:
            wait = Wait(frozenset({peer}), f"in {_name(op)} {sequence} between them")
            lines.setdefault(rank, []).append(wait)
    _wait_in_groups(now, lines, together)
    _wait_in_votes(now, lines)
    every = {wait for waits in lines.values() for wait in waits}
    waited_for = set[int]().union(*(wait.others for wait in every))
    roots = sorted(rank for rank in waited_for if rank in now.stale or rank not in lines)
    return Waits(lines=lines, roots=tuple(roots), stuck=tuple(sorted(stuck)))


def _name(op: int) -> str:
    return OPS[op] if 0 <= op < len(OPS) else f"operation {op}"


def _wait_in_groups(
    now: Standstill,
    lines: dict[int, list[Wait]],
    together: Mapping[tuple[int, int, int], Sequence[int]],
) -> None:
    """Whoever is in an operation of a group waits for those of it who have not entered it."""
    entered: dict[tuple[int, int], set[int]] = {}
    for (sequence, group, _), ranks in together.items():
        entered.setdefault((sequence, group), set()).update(ranks)
    missing: dict[tuple[int, int], frozenset[int]] = {}
    room = _LOOKS * (len(now.pulses) + len(now.open) + 1)
    for (sequence, group, op), ranks in sorted(together.items()):
        place = (sequence, group)
        if place not in missing:
            # The lowest numbers hold all others up. Honest ranks are in few; one that claims to
            # be in thousands must not cost a look at the whole job for each.
            members = [member for span in now.groups.get(group, ()) for member in span]
            room -= len(members)
            if room < 0:
                return
            there = entered[place]
            missing[place] = frozenset(
                member for member in members if _is_missing(now, group, member, sequence, there)
            )
        if not missing[place]:
            continue
        wait = Wait(missing[place], f"in {_name(op)} {sequence} of group {group:08x}")
        for rank in ranks:
            if rank not in now.stale:
                lines.setdefault(rank, []).append(wait)


def _is_missing(now: Standstill, group: int, member: int, sequence: int, there: set[int]) -> bool:
    if member in now.stale:
        return True
    if member in there:
        return False
    known = now.issued.get((group, member))
    # One that does not say how far it is is in no operation at all.
    return known is None or known <= sequence


def _wait_in_votes(now: Standstill, lines: dict[int, list[Wait]]) -> None:
    """Ranks that vote and show no operation wait for whoever does not vote yet."""
    busy = set(now.open["rank"].tolist())
    pulses = now.pulses[["rank", "step", "phase"]].tolist()
    voting = {
        rank: step for rank, step, phase in pulses if phase == Phase.VOTE and rank not in now.stale
    }
    waiting: dict[int, list[int]] = {}
    for rank, step in voting.items():
        if rank not in busy and not lines.get(rank):
            waiting.setdefault(step, []).append(rank)
    for step in sorted(waiting)[:_LOOKS]:
        behind = frozenset(
            rank
            for rank, at, _ in pulses
            if (rank not in voting and at <= step) or rank in now.stale
        )
        if behind:
            wait = Wait(behind, f"in the vote on step {step}")
            for rank in waiting[step]:
                lines.setdefault(rank, []).append(wait)


_ENDS: Final = ("rank", "peer", "group")
_SENT: Final = ("sent_messages", "sent_bytes")
_RECEIVED: Final = ("received_messages", "received_bytes")


def _arrived(links: Records) -> dict[tuple[int, int], bool]:
    """For each (sending, receiving) pair whose two ends are known: did everything arrive?"""
    sent: dict[tuple[int, int, int], tuple[int, int]] = {}
    got: dict[tuple[int, int, int], tuple[int, int]] = {}
    for one in links[[*_ENDS, *_SENT, *_RECEIVED]].tolist():
        rank, peer, group, *counted = one
        out, back = (rank, peer, group), (peer, rank, group)
        sent[out] = _most(sent.get(out), *counted[:2])
        got[back] = _most(got.get(back), *counted[2:])
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
