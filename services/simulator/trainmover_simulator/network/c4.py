"""C4's setting (arXiv 2406.04594): what orders of rings and paths of flows make of its jobs.

From the paper: 8 GPUs and 8 cards to a machine, two bonded ports of 200 Gb/s to a card, as wide up
as down; a model of 22 billion parameters on 512 GPUs stays 30 % below what it would do if it never
waited for communication. Not known, and assumed: four machines to a leaf, uplinks of 400 Gb/s, two
flows to a connection.
"""

from __future__ import annotations

import statistics
from typing import Final, Literal

from trainmover_simulator.network.contention import Paths, any_order, card_gbps
from trainmover_simulator.network.fabric import Fabric

__all__ = ["SETTING", "WAITING", "Order", "typical_gbps"]

SETTING: Final = Fabric(machines=64, per_leaf=4)
WAITING: Final = 0.30
"""Share of a step in which the job of 22 billion parameters waits for communication."""

Order = Literal["random", "planned"]
"""Machines as a scheduler happened to hand them out, or leaf by leaf."""

_SEEDS: Final = range(41)


def typical_gbps(order: Order, paths: Paths, *, fabric: Fabric = SETTING) -> float:
    """Gb/s that a card carries, the median over 41 draws of order and hashes."""
    leaf_by_leaf = list(range(fabric.machines))
    return statistics.median(
        card_gbps(
            fabric,
            leaf_by_leaf if order == "planned" else any_order(fabric.machines, seed),
            paths=paths,
            seed=seed,
        )
        for seed in _SEEDS
    )
