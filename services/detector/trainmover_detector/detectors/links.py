"""Which connection is slow? A matrix of delays over links, hot cells, rows and columns; pure.

The receiving end of a link clocks how long the body of each large message took from its first
byte to its last: no clock of another machine is involved, and a late sender does not count, since
the clock starts with its first byte. Delay per byte, sender by receiver, makes a matrix. One hot
cell is that connection, a hot row the sending side of a machine, a hot column the receiving side.
The kernel's round-trip times show what only delays and does not narrow a connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trainmover.detection import CollectiveWindow, DetectorConfig, Evidence, Finding
from trainmover.job.topology import Membership
from trainmover.telemetry.records import LINK

__all__ = ["LinksConfig", "LinksDetector"]

_KEPT: Final = 12
_ROW: Final = 2
"""A side of a machine shows in connections with so many others."""
_MOST_OF: Final = 0.5

Records = npt.NDArray[np.void]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
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


class _Ends:
    """Readings of links, at their receiving ends; a column for each link."""

    def __init__(self, rows: Records, before: _Ends | None) -> None:
        count = len(rows)
        self.key = _key(rows)
        self.sources, self.targets = rows["peer"].astype(np.int64), rows["rank"].astype(np.int64)
        self.round_trip_s = np.zeros(count)
        self.delays = np.full((_KEPT, count), np.nan)
        self.shares = np.zeros((_KEPT, count))
        self.past = np.full(count, np.nan)
        self._seen = np.zeros(count, int)
        self._body_ns = np.full(count, -1, np.int64)
        self._body_bytes = np.zeros(count, np.int64)
        self._read_s = np.zeros(count)
        self._columns = {name: at for at, name in enumerate(zip(*_names(rows), strict=True))}
        if before is not None:
            self._inherit(before)

    def _inherit(self, before: _Ends) -> None:
        """Keep what is known of links that are still there."""
        names = [name for name in self._columns if name in before._columns]
        mine = [self._columns[name] for name in names]
        theirs = [before._columns[name] for name in names]
        for field in ("delays", "shares"):
            getattr(self, field)[:, mine] = getattr(before, field)[:, theirs]
        for field in ("past", "_seen", "_body_ns", "_body_bytes", "_read_s"):
            getattr(self, field)[mine] = getattr(before, field)[theirs]

    def take(self, rows: Records, read_s: Floats, *, least_bytes: int) -> int:
        """Take in counters of the same links, read at ``read_s``; how many readings came of it."""
        self.round_trip_s = rows["rtt_us"] * 1e-6
        moved = rows["body_bytes"] - self._body_bytes
        restarted = (self._body_ns < 0) | (moved < 0)
        ready = restarted | (moved >= least_bytes)
        # Memory that two processes share is no connection.
        fresh = np.flatnonzero(ready & ~restarted & (rows["rtt_us"] > 0))
        if len(fresh):
            took_ns = rows["body_ns"][fresh] - self._body_ns[fresh]
            slots = self._seen[fresh] % _KEPT
            self.delays[slots, fresh] = took_ns / moved[fresh]
            lasted_s = np.maximum(read_s[fresh] - self._read_s[fresh], 1e-3)
            self.shares[slots, fresh] = took_ns * 1e-9 / lasted_s
            self._seen[fresh] += 1
            whole = fresh[self._seen[fresh] == _KEPT]
            if len(whole):  # the level that a link has at first
                self.past[whole] = np.median(self.delays[:, whole], axis=0)
        self._body_ns = np.where(ready, rows["body_ns"], self._body_ns)
        self._body_bytes = np.where(ready, rows["body_bytes"], self._body_bytes)
        self._read_s = np.where(ready, read_s, self._read_s)
        return len(fresh)

    def latest(self, count: int) -> tuple[Floats, Floats]:
        """The latest delays and shares of each link; NaN where there are not so many."""
        at = (self._seen[None, :] - 1 - np.arange(count)[:, None]) % _KEPT
        columns = np.arange(len(self._seen))[None, :]
        short = self._seen < count
        delays = np.where(short, np.nan, self.delays[at, columns])
        return delays, self.shares[at, columns]


def _names(rows: Records) -> tuple[list[int], list[int], list[int]]:
    """Rank, peer and group of each link."""
    return rows["rank"].tolist(), rows["peer"].tolist(), rows["group"].tolist()


def _key(rows: Records) -> bytes:
    """Equal where the same links stand in the same order."""
    return b"".join(rows[field].tobytes() for field in ("rank", "peer", "group"))


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The delays of a job's connections.

    Attributes:
        cells: All connections that are known.
        hot: Those that were slow in each of the latest readings, with their ratio.
        warm: Those that were in the latest one.
        lasting: Those that were for twice as many readings as hot ones.
    """

    cells: set[Cell]
    hot: dict[Cell, float]
    warm: set[Cell]
    lasting: set[Cell]


class LinksDetector:
    """Names connections, and sides of machines, that are slow."""

    api_version: ClassVar[int] = 1
    reads: ClassVar[frozenset[str]] = frozenset({"links"})
    Config = LinksConfig

    def __init__(self, config: LinksConfig = LinksConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._membership: Membership | None = None
        self._latest: dict[str, tuple[Records, float]] = {}
        self._ends: _Ends | None = None
        self._unread = False
        self._judged_s = 0.0
        self._findings: dict[tuple[str, str | None, Cell | None], Finding] = {}

    def membership_changed(self, membership: Membership) -> None:
        """Links were replaced."""
        self._membership = membership
        self._latest.clear()
        self._ends, self._unread = None, False
        self._findings.clear()

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        """Take in counters."""
        membership = self._membership
        if membership is None or window.epoch != membership.epoch or not len(window.links):
            return ()
        self._latest[window.machine] = window.links, window.received_s
        self._unread = True
        return ()

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """Liveness is not its business."""
        del evidence
        return ()

    def tick(self, now_s: float) -> Iterable[Finding]:
        """Judge once a second, when there is something new."""
        if self._membership is None or not self._unread or now_s - self._judged_s < 1.0:
            return ()
        self._judged_s, self._unread = now_s, False
        # All machines at once: a job may have thousands of them. As bytes, because numpy would
        # compare the fields of every array with those of the one before it.
        rows = np.concatenate([rows.view(np.uint8) for rows, _ in self._latest.values()]).view(LINK)
        read_s = np.repeat(
            [at_s for _, at_s in self._latest.values()],
            [len(rows) for rows, _ in self._latest.values()],
        )
        if self._ends is None or self._ends.key != _key(rows):
            self._ends = _Ends(rows, self._ends)
        if not self._ends.take(rows, read_s, least_bytes=self._config.least_bytes):
            return ()
        return self._judge(self._membership, self._ends)

    # -- judgement -------------------------------------------------------------------------------

    def _judge(self, membership: Membership, ends: _Ends) -> list[Finding]:
        config = self._config
        ranks = membership.layout.ranks_per_slot
        sources, targets, past, trips = ends.sources, ends.targets, ends.past, ends.round_trip_s
        delays, shares = ends.latest(config.samples)
        known = ~np.isnan(delays).any(axis=0) & (sources // ranks != targets // ranks)
        if np.count_nonzero(known) < 3:
            return self._settle([])  # nothing to compare with
        sources, targets, past, trips = (a[known] for a in (sources, targets, past, trips))
        delays, shares = delays[:, known], shares[:, known]
        middle = np.median(delays, axis=0)
        usual = float(np.median(middle))
        # A link that was slow from the beginning has no past to be measured by.
        past = np.where(np.isnan(past) | (past > config.ratio * usual), usual, past)
        least = np.maximum(config.ratio * usual, config.own_ratio * past)
        ratio = middle / max(usual, 1e-12)
        cost = np.median(shares, axis=0) * (1 - 1 / np.maximum(ratio, 1.0))
        cells = np.stack([sources, targets], axis=1).tolist()
        hot: dict[Cell, float] = {}
        for index in np.flatnonzero((delays >= least).all(axis=0) & (cost >= config.least_share)):
            source, target = cells[index]
            hot[source, target] = max(float(ratio[index]), hot.get((source, target), 0.0))
        found: list[Finding] = []
        if hot:
            warm = {(a, b) for (a, b), one in zip(cells, delays[0] >= least, strict=True) if one}
            long = (ends.latest(2 * config.samples)[0][:, known] >= least).all(axis=0)
            lasting = {(cells[index][0], cells[index][1]) for index in np.flatnonzero(long)}
            matrix = _Matrix({(a, b) for a, b in cells}, hot, warm, lasting)
            found += self._place(matrix, membership, usual)
        found += self._far(membership, sources, targets, trips)
        return self._settle(found)

    def _place(self, matrix: _Matrix, membership: Membership, usual: float) -> list[Finding]:
        """Whole rows and columns first; what is left are single connections."""
        findings: list[Finding] = []
        left, hot = dict(matrix.hot), matrix.hot
        for side, index in (("sending", 0), ("receiving", 1)):
            machines = sorted({membership.machine_of(cell[index]) for cell in hot})
            for machine in machines:
                whole = {c for c in matrix.cells if membership.machine_of(c[index]) == machine}
                peers = {membership.machine_of(cell[1 - index]) for cell in whole}
                if len(peers) < _ROW:
                    continue
                if whole <= hot.keys():
                    findings.append(self._side(machine, side, whole, hot, usual))
                    left = {cell: ratio for cell, ratio in left.items() if cell not in whole}
                elif len(whole & matrix.warm) > _MOST_OF * len(whole):
                    # It looks like the whole side, and some links have less to tell so far.
                    left = {c: r for c, r in left.items() if c not in whole or c in matrix.lasting}
        return findings + [
            self._link(cell, ratio, membership, usual) for cell, ratio in sorted(left.items())
        ]

    def _side(
        self, machine: str, side: str, whole: set[Cell], hot: dict[Cell, float], usual: float
    ) -> Finding:
        ratio = float(np.median([hot[cell] for cell in whole]))
        return Finding(
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

    def _link(self, cell: Cell, ratio: float, membership: Membership, usual: float) -> Finding:
        source, target = cell
        names = membership.machine_of(source), membership.machine_of(target)
        return Finding(
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
        self, membership: Membership, sources: Ints, targets: Ints, trips: Floats
    ) -> list[Finding]:
        """Connections whose round-trip time alone is out of all proportion."""
        usual = float(np.median(trips))
        config = self._config
        least = max(config.round_trip_ratio * usual, usual + config.round_trip_s)
        indices = np.flatnonzero(trips >= least)
        far: dict[Cell, float] = {}
        for index in indices.tolist():
            a, b = sorted((int(sources[index]), int(targets[index])))
            far[a, b] = max(float(trips[index]), far.get((a, b), 0.0))
        if not far or len(indices) > len(trips) // 3:
            return []
        return [
            Finding(
                kind="link_far",
                machine=None,
                rank=None,
                confidence=0.7,
                summary=f"between rank {a} ({membership.machine_of(a)}) and rank {b} "
                f"({membership.machine_of(b)}) a round trip takes "
                f"{trip * 1e3:.1f} ms, "
                f"elsewhere {usual * 1e3:.2f} ms",
                evidence={"usual_s": usual, "indistinguishable": "the direction"},
                link=(a, b),
            )
            for (a, b), trip in sorted(far.items())
        ]

    def _settle(self, found: list[Finding]) -> list[Finding]:
        """Findings, and the end of findings that do not hold any more."""
        now = {(v.kind, v.machine, v.link): v for v in found}
        over: list[Any] = [key for key in self._findings if key not in now]
        closed = [
            Finding(kind, machine, None, 0.8, "as quick as others again", closed=True, link=link)
            for kind, machine, link in over
        ]
        self._findings = now
        return [*found, *closed]
