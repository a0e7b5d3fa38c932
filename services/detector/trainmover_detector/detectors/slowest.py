"""Which machines are the slowest, interval by interval? For policies that rebalance; pure.

The straggler detector names a machine as soon as some steps stand out of the noise. This one looks
once an interval at all of its steps, so it sees what is too small for that, or was there from the
beginning. It measures only where a policy declares ``rebalance``, and moves nobody.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainmover.detection import Finding
from trainmover.job.topology import Membership
from trainmover.policy.model import Rebalance
from trainmover_detector.measures.baselines import MEDIAN_ERROR, successive_sigma

__all__ = ["Slowest"]

_MOST_ROWS: Final = 128
"""So many steps of an interval are kept, evenly spread; a median of more says no more."""
_LEAST_ROWS: Final = 16
"""Of fewer steps nothing is said: the look waits for more."""
_SIGMAS: Final = 6.0
"""How far a median must stand out of the noise of a median of so many steps."""
_PARTS: Final = 4
"""A machine that is late in some of the parts of an interval alone is not slow, but was."""

Floats = npt.NDArray[np.float32]


class Slowest:
    """Names the slowest machines once an interval.

    Lateness comes from the straggler detector, which measures it anyway.
    """

    def __init__(self) -> None:
        self._wanted: Rebalance | None = None
        self._due_s = math.inf
        self._named: frozenset[str] = frozenset()
        self._withdrawn: frozenset[str] = frozenset()
        self._clear()

    def _clear(self) -> None:
        self._rows: list[Floats] = []
        self._steps: list[int] = []
        self._step_s: list[float] = []
        self._stride, self._seen = 1, 0

    def declare(self, wanted: Rebalance | None, now_s: float) -> None:
        """A policy says how often; what is open is withdrawn where it no longer asks."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._due_s = math.inf if wanted is None else now_s + wanted.every_s
        if wanted is None:
            self._withdrawn, self._named = self._named, frozenset()
        self._clear()

    def membership_changed(self) -> None:
        """Others hold the slots: what was measured is about nobody any more."""
        self._clear()

    def take(self, late: npt.NDArray[np.float64], *, step: int, step_s: float) -> None:
        """Take in one step of all ranks.

        Args:
            late: How late each rank was, as a share of the step.
            step: Its index.
            step_s: How long it took, in seconds.
        """
        if self._wanted is None:
            return
        self._seen += 1
        if self._seen % self._stride:
            return
        self._rows.append(late.astype(np.float32))
        self._steps.append(step)
        self._step_s.append(step_s)
        if len(self._rows) == _MOST_ROWS:
            # Every other one goes, so that the whole interval stays in sight.
            for kept in (self._rows, self._steps, self._step_s):
                del kept[::2]
            self._stride *= 2

    def look(self, membership: Membership, now_s: float) -> list[Finding]:
        """Judge the interval where it is over and has steps enough; else nothing."""
        gone, self._withdrawn = self._withdrawn, frozenset()
        said = [_closed(name, "rebalancing is not declared any more") for name in sorted(gone)]
        if self._wanted is None or now_s < self._due_s or len(self._rows) < _LEAST_ROWS:
            return said
        found = self._judge(membership, self._wanted)
        named = frozenset(one.machine for one in found if one.machine is not None)
        over = sorted(self._named - named)
        said += [_closed(name, f"{name} is not among the slowest any more") for name in over]
        self._named = named
        # The looks keep their distance however late one was.
        missed = math.floor((now_s - self._due_s) / self._wanted.every_s)
        self._due_s += (1 + missed) * self._wanted.every_s
        self._clear()
        return said + found

    def _judge(self, membership: Membership, wanted: Rebalance) -> list[Finding]:
        rows = np.array(self._rows)
        middle = np.median(rows, axis=0)
        parts = [np.median(part, axis=0) for part in np.array_split(rows, _PARTS)]
        noise = successive_sigma(rows)
        least = max(wanted.least, _SIGMAS * MEDIAN_ERROR * noise / len(rows) ** 0.5)
        steady = np.min(parts, axis=0) >= wanted.least / 2
        ranks: dict[str, int] = {}
        for rank in np.flatnonzero((middle >= least) & steady).tolist():
            known = ranks.setdefault(membership.machine_of(rank), rank)
            if middle[rank] > middle[known]:
                ranks[membership.machine_of(rank)] = rank
        order = sorted(ranks, key=lambda name: -middle[ranks[name]])[: wanted.at_most]
        return [self._finding(name, ranks[name], middle, noise, membership) for name in order]

    def _finding(
        self, machine: str, rank: int, middle: Floats, noise: float, membership: Membership
    ) -> Finding:
        mine, step_s = float(middle[rank]), float(np.median(self._step_s))
        slot = membership.slot_of_machine(machine)
        own = [] if slot is None else [*membership.layout.ranks_of(slot)]
        others = np.delete(middle, own)
        evidence: dict[str, Any] = {
            "lateness": round(mine, 4),
            "lateness_of_next": round(float(others.max(initial=0.0)), 4),
            "noise": round(noise, 4),
            "steps": self._seen,
            "from_step": self._steps[0],
            "to_step": self._steps[-1],
            "step_s": round(step_s, 6),
            "wait_caused_s": round(mine * step_s, 6),
        }
        return Finding(
            kind="slowest",
            machine=machine,
            rank=rank,
            confidence=round(min(0.99, 1 - noise / (mine * len(self._rows) ** 0.5 + noise)), 3),
            summary=f"{machine} is the slowest: rank {rank} makes its peers wait {mine:.1%} of "
            f"each step ({mine * step_s * 1e3:.1f} of {step_s * 1e3:.0f} ms) over {self._seen} "
            "steps",
            evidence=evidence,
            advice="move",
        )


def _closed(machine: str, summary: str) -> Finding:
    return Finding("slowest", machine, None, 0.9, summary, closed=True)
