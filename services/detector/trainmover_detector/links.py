"""Which connection is slow? A matrix of delays over links, hot cells, rows and columns; pure.

The receiving end of a link clocks how long the body of each large message took from its first
byte to its last: no clock of another machine is involved, and a late sender does not count, since
the clock starts with its first byte. Delay per byte, sender by receiver, makes a matrix. One hot
cell is that connection, a hot row the sending side of a machine, a hot column the receiving side.
The kernel's round-trip times show what only delays and does not narrow a connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import Field

from trainmover.detection import CollectiveWindow, DetectorConfig, Evidence, Verdict
from trainmover.topology import Membership

__all__ = ["LinksConfig", "LinksDetector"]

_KEPT: Final = 12

Cell = tuple[int, int]
"""(sending rank, receiving rank)"""


class LinksConfig(DetectorConfig):
    """Settings of ``links``.

    Attributes:
        ratio: How many times the usual delay of the job's links makes a link hot.
        own_ratio: How many times its own earlier delay, where it has one.
        samples: So many readings in a row must be hot.
        least_share: Share of the time that a hot link costs at the least.
        round_trip_ratio: How many times the usual round-trip time makes a link hot.
        round_trip_s: Least excess of it, in seconds.
        least_bytes: A reading needs so many bytes.
    """

    ratio: float = Field(default=2.0, gt=1)
    own_ratio: float = Field(default=1.6, gt=1)
    samples: int = Field(default=4, ge=1)
    least_share: float = Field(default=0.03, ge=0)
    round_trip_ratio: float = Field(default=8.0, gt=1)
    round_trip_s: float = Field(default=0.005, gt=0)
    least_bytes: int = Field(default=256 * 1024, gt=0)


@dataclass(slots=True)
class _Link:
    """Readings of one link at its receiving end."""

    body_ns: int = -1
    body_bytes: int = 0
    read_s: float = 0.0
    delays: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    past: list[float] = field(default_factory=list)
    round_trip_s: float = 0.0


class LinksDetector:
    """Names connections, and sides of machines, that are slow."""

    api_version: ClassVar[int] = 1
    Config = LinksConfig

    def __init__(self, config: LinksConfig = LinksConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._membership: Membership | None = None
        self._links: dict[tuple[int, int, int], _Link] = {}
        self._fresh = 0
        self._judged_s = 0.0
        self._claimed: dict[tuple[str, str | None, Cell | None], Verdict] = {}

    def membership_changed(self, membership: Membership) -> None:
        """Links were replaced."""
        self._membership = membership
        self._links.clear()
        self._claimed.clear()

    def observe(self, window: CollectiveWindow) -> Iterable[Verdict]:
        """Take in counters."""
        membership = self._membership
        if membership is None or window.epoch != membership.epoch or not len(window.links):
            return ()
        for row in window.links.tolist():
            rank, peer, group, round_trip_us = row[:4]
            link = self._links.setdefault((peer, rank, group), _Link())
            link.round_trip_s = round_trip_us * 1e-6
            if round_trip_us:  # memory that two processes share is no connection
                self._read(link, int(row[10]), int(row[11]), window.received_s)
        return ()

    def notice(self, evidence: Evidence) -> Iterable[Verdict]:
        """Liveness is not its business."""
        del evidence
        return ()

    def tick(self, now_s: float) -> Iterable[Verdict]:
        """Judge once a second, when there is something new."""
        if self._membership is None or not self._fresh or now_s - self._judged_s < 1.0:
            return ()
        self._judged_s, self._fresh = now_s, 0
        return self._judge(self._membership)

    def _read(self, link: _Link, body_ns: int, body_bytes: int, now_s: float) -> None:
        before_ns, before_bytes, before_s = link.body_ns, link.body_bytes, link.read_s
        moved = body_bytes - before_bytes
        if before_ns >= 0 and moved >= 0 and moved < self._config.least_bytes:
            return  # wait for more
        link.body_ns, link.body_bytes, link.read_s = body_ns, body_bytes, now_s
        if before_ns < 0 or moved < 0:
            return  # the first reading, or another link took its place
        delay = (body_ns - before_ns) / moved
        link.delays.append(delay)
        link.shares.append((body_ns - before_ns) * 1e-9 / max(now_s - before_s, 1e-3))
        if len(link.past) < _KEPT:
            link.past.append(delay)
        self._fresh += 1

    # -- judgement -------------------------------------------------------------------------------

    def _judge(self, membership: Membership) -> list[Verdict]:
        samples = self._config.samples
        known = {
            key: link
            for key, link in self._links.items()
            if len(link.delays) >= samples
            and membership.machine_of(key[0]) != membership.machine_of(key[1])
        }
        if len(known) < 3:
            return []  # nothing to compare with
        latest = {key: np.array(link.delays)[-samples:] for key, link in known.items()}
        usual = float(np.median([np.median(each) for each in latest.values()]))
        hot: dict[Cell, float] = {}
        for (source, target, _), link in known.items():
            delays = latest[source, target, _]
            past = float(np.median(link.past)) if len(link.past) >= _KEPT else usual
            past = past if past < self._config.ratio * usual else usual
            least = max(self._config.ratio * usual, self._config.own_ratio * past)
            ratio = float(np.median(delays)) / max(usual, 1e-12)
            cost = float(np.median(np.array(link.shares)[-samples:])) * (1 - 1 / max(ratio, 1.0))
            if (delays >= least).all() and cost >= self._config.least_share:
                hot[source, target] = max(ratio, hot.get((source, target), 0.0))
        found = self._place(hot, {key[:2] for key in known}, membership, usual)
        found += self._far(membership, known)
        return self._settle(found)

    def _place(
        self, hot: dict[Cell, float], cells: set[Cell], membership: Membership, usual: float
    ) -> list[Verdict]:
        """Whole rows and columns first; what is left are single connections."""
        verdicts: list[Verdict] = []
        left = dict(hot)
        for side, index in (("sending", 0), ("receiving", 1)):
            machines = sorted({membership.machine_of(cell[index]) for cell in hot})
            for machine in machines:
                whole = {c for c in cells if membership.machine_of(c[index]) == machine}
                peers = {membership.machine_of(cell[1 - index]) for cell in whole}
                if len(peers) >= 2 and whole <= hot.keys():
                    verdicts.append(self._side(machine, side, whole, hot, usual))
                    left = {cell: ratio for cell, ratio in left.items() if cell not in whole}
        return verdicts + [
            self._link(cell, ratio, membership, usual) for cell, ratio in sorted(left.items())
        ]

    def _side(
        self, machine: str, side: str, whole: set[Cell], hot: dict[Cell, float], usual: float
    ) -> Verdict:
        ratio = float(np.median([hot[cell] for cell in whole]))
        return Verdict(
            kind="link_slow",
            machine=machine,
            rank=None,
            confidence=0.9,
            summary=f"{machine}: all {len(whole)} links on its {side} side take {ratio:.1f} times "
            "as long for each byte as the job's others",
            evidence={
                "side": side,
                "ratio": round(ratio, 2),
                "links": sorted(whole)[:64],
                "usual_ns_per_kib": round(usual * 1024, 3),
                "indistinguishable": "a network card, its cable, and a host too busy to serve it",
            },
            advice="move",
        )

    def _link(self, cell: Cell, ratio: float, membership: Membership, usual: float) -> Verdict:
        source, target = cell
        names = membership.machine_of(source), membership.machine_of(target)
        return Verdict(
            kind="link_slow",
            machine=None,
            rank=None,
            confidence=0.85,
            summary=f"the connection from rank {source} ({names[0]}) to rank {target} "
            f"({names[1]}) takes {ratio:.1f} times as long for each byte as the job's others",
            evidence={
                "side": "link",
                "ratio": round(ratio, 2),
                "machines": names,
                "usual_ns_per_kib": round(usual * 1024, 3),
            },
            link=cell,
        )

    def _far(
        self, membership: Membership, known: dict[tuple[int, int, int], _Link]
    ) -> list[Verdict]:
        """Connections whose round-trip time alone is out of all proportion."""
        trips = {key[:2]: link.round_trip_s for key, link in known.items()}
        usual = float(np.median([*trips.values()]))
        least = max(self._config.round_trip_ratio * usual, usual + self._config.round_trip_s)
        far = sorted({(min(c), max(c)) for c, trip in trips.items() if trip >= least})
        if not far or len(far) > len(trips) // 3:
            return []
        return [
            Verdict(
                kind="link_far",
                machine=None,
                rank=None,
                confidence=0.7,
                summary=f"between rank {a} ({membership.machine_of(a)}) and rank {b} "
                f"({membership.machine_of(b)}) a round trip takes "
                f"{max(trips.get((a, b), 0), trips.get((b, a), 0)) * 1e3:.1f} ms, "
                f"elsewhere {usual * 1e3:.2f} ms",
                evidence={"usual_s": usual, "indistinguishable": "the direction"},
                link=(a, b),
            )
            for a, b in far
        ]

    def _settle(self, found: list[Verdict]) -> list[Verdict]:
        """Claims, and the end of claims that do not hold any more."""
        now = {(v.kind, v.machine, v.link): v for v in found}
        over: list[Any] = [key for key in self._claimed if key not in now]
        closed = [
            Verdict(kind, machine, None, 0.8, "as quick as others again", closed=True, link=link)
            for kind, machine, link in over
        ]
        self._claimed = now
        return [*found, *closed]
