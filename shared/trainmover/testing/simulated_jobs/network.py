"""Counters of the links of a simulated job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import LINK
from trainmover.testing.simulated_jobs.injections import Injection
from trainmover.testing.simulated_jobs.shape import Shape

__all__ = ["Network"]

_BYTES: Final = 48 * 1024 * 1024
_MESSAGES: Final = 12
_STUCK_BYTES: Final = 512 * 1024


class Network:
    """Every link, as its two ends count it.

    Args:
        shape: Who talks to whom.
        rng: Of the noise of each link.
    """

    dtype = LINK

    def __init__(self, shape: Shape, *, rng: np.random.Generator) -> None:
        self._shape = shape
        self._rng = rng
        ends: dict[tuple[int, int, str], int] = {}
        for source, target, group in shape.links:
            ends.setdefault((source, target, group), len(ends))
            ends.setdefault((target, source, group), len(ends))
        self._table = np.zeros(len(ends), LINK)
        for (rank, peer, group), index in ends.items():
            self._table[index]["rank"], self._table[index]["peer"] = rank, peer
            self._table[index]["group"] = shape.ids[group]
        self._sender = np.array([ends[link] for link in shape.links], int)
        self._receiver = np.array([ends[(t, s, g)] for s, t, g in shape.links], int)
        self._source = np.array([source for source, _, _ in shape.links], int)
        self._target = np.array([target for _, target, _ in shape.links], int)
        # Links are not alike: some go over another switch.
        self._quality = rng.uniform(0.9, 1.15, len(shape.links))

    def carry(self, step: int, injections: Sequence[Injection], *, network_s: float) -> None:
        """A step is complete: its bytes went over the links."""
        count = len(self._sender)
        if not count:
            return
        slow = self._slowness(step, injections)
        took = network_s / max(1.0, float(slow.max())) * self._quality * slow
        took *= np.maximum(0.5, 1 + 0.08 * self._rng.standard_normal(count))
        table = self._table
        for name, values, ends in (
            ("sent_messages", _MESSAGES, self._sender),
            ("sent_bytes", _BYTES, self._sender),
            ("send_blocked_ns", (0.3 * took * 1e9).astype(np.int64), self._sender),
            ("received_messages", _MESSAGES, self._receiver),
            ("received_bytes", _BYTES, self._receiver),
            ("body_bytes", _BYTES, self._receiver),
            ("body_ns", (took * 1e9).astype(np.int64), self._receiver),
            ("wait_ns", int(network_s * 2e8), self._receiver),
        ):
            np.add.at(table[name], ends, values)
        table["rtt_us"] = np.maximum(20, 100 + 10 * self._rng.standard_normal(len(table)))

    def _slowness(self, step: int, injections: Sequence[Injection]) -> npt.NDArray[np.float64]:
        slow = np.ones(len(self._sender))
        machine = self._shape.ranks_per_slot
        for one in injections:
            if not one.strikes(step):
                continue
            away = self._source // machine != self._target // machine
            if one.kind == "slow_network":
                slow *= one.factor
            elif one.kind == "slow_link" and one.link is not None:
                slow[(self._source == one.link[0]) & (self._target == one.link[1])] *= one.factor
            elif one.kind == "slow_sender":
                slow[np.isin(self._source, one.ranks) & away] *= one.factor
            elif one.kind == "slow_receiver":
                slow[np.isin(self._target, one.ranks) & away] *= one.factor
        return slow

    def rows(self, step: int, injections: Sequence[Injection]) -> npt.NDArray[np.void]:
        """All counters now, dtype ``LINK``."""
        rows = self._table.copy()
        for one in injections:
            if one.kind == "link_hang" and one.strikes(step) and one.link is not None:
                stuck = (self._source == one.link[0]) & (self._target == one.link[1])
                rows["sent_messages"][self._sender[stuck]] += 1
                rows["sent_bytes"][self._sender[stuck]] += _STUCK_BYTES
        return rows
