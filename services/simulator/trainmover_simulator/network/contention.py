"""How fast rings are on a network whose ports they share, and what that makes of a step.

On each rail the machines form a ring, in one order. Each machine sends as much to the next as it
gets from the one before, in a few long flows. A switch chooses a flow's port by a hash of its
addresses (ECMP), so that several may meet on one while others are free; or somebody who knows all
flows plans their paths (C4P). All of a ring waits for its slowest link, and a step for all rings,
so the port with most flows decides. Pure: chance comes from a seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from trainmover_simulator.network.fabric import Fabric

__all__ = ["Paths", "any_order", "card_gbps", "step_time"]

Paths = Literal["hashed", "planned"]
"""Who chooses the ports of a flow: a hash, or a plan of all flows."""

_FLOWS: Final = 2
"""Flows of a connection, one for each port of a card if they are well spread."""

Port = tuple[str, int, int, int]
"""A direction of a port: what it is, and three numbers that tell it from others."""


def any_order(machines: int, seed: int) -> list[int]:
    """The machines in the order in which a scheduler happened to hand them out."""
    order = list(range(machines))
    random.Random(seed).shuffle(order)  # noqa: S311 - a simulation
    return order


def card_gbps(fabric: Fabric, ring: Sequence[int], *, paths: Paths, seed: int) -> float:
    """What each network card carries while all rings run, in Gb/s.

    Args:
        fabric: The network.
        ring: The machines, in the order of the ring.
        paths: How the ports of flows are chosen.
        seed: Where chance begins.
    """
    loads = _hashed(fabric, ring, seed) if paths == "hashed" else _planned(fabric, ring)
    # A card's traffic is cut in equal flows, so a port with as many of them carries it all.
    speeds = [_capacity(fabric, port) * _FLOWS / load for port, load in loads.items()]
    return min([fabric.ceiling_gbps, *speeds])


def step_time(share: float, before_gbps: float, after_gbps: float) -> float:
    """Time of a step after communication got faster, as a share of what it was.

    Args:
        share: Share of the step before in which the job waited for communication.
        before_gbps: What a card carried then.
        after_gbps: What it carries now.
    """
    return 1 - share + share * before_gbps / after_gbps


def _capacity(fabric: Fabric, port: Port) -> float:
    return fabric.uplink_gbps if port[0] in ("up", "down") else fabric.port_gbps


def _links(fabric: Fabric, ring: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """(sender, receiver, rail, flow) of every flow."""
    for sender, receiver in zip(ring, [*ring[1:], ring[0]], strict=True):
        if sender == receiver:
            return  # a machine alone sends nothing
        for rail in range(fabric.rails):
            for flow in range(_FLOWS):
                yield sender, receiver, rail, flow


def _hashed(fabric: Fabric, ring: Sequence[int], seed: int) -> Counter[Port]:
    """Flows on each port, where hashes choose.

    The sender's bond chooses its port, the leaf switch the spine, and the spine the leaf switch of
    the receiver. A leaf switch hands to a machine of its own what comes from another one.
    """
    chance = random.Random(seed)  # noqa: S311 - a simulation
    loads: Counter[Port] = Counter()
    for sender, receiver, rail, _ in _links(fabric, ring):
        out = into = chance.randrange(fabric.ports)
        source, target = fabric.leaf_of(sender), fabric.leaf_of(receiver)
        if source != target:
            spine, into = chance.randrange(fabric.uplinks), chance.randrange(fabric.ports)
            _add(loads, ("up", source, out, spine), ("down", target, into, spine))
        _add(loads, ("out", sender, rail, out), ("in", receiver, rail, into))
    return loads


def _planned(fabric: Fabric, ring: Sequence[int]) -> Counter[Port]:
    """Flows on each port, where each flow takes the emptiest spine.

    Flows of a connection are spread over the ports of a card, and arrive at the same one.
    """
    loads: Counter[Port] = Counter()
    for sender, receiver, rail, flow in _links(fabric, ring):
        port = flow % fabric.ports
        source, target = fabric.leaf_of(sender), fabric.leaf_of(receiver)
        if source != target:
            ways: list[tuple[Port, Port]] = [
                (("up", source, port, spine), ("down", target, port, spine))
                for spine in range(fabric.uplinks)
            ]
            _add(loads, *min(ways, key=lambda way: max(loads[way[0]], loads[way[1]])))
        _add(loads, ("out", sender, rail, port), ("in", receiver, rail, port))
    return loads


def _add(loads: Counter[Port], *ports: Port) -> None:
    for port in ports:
        loads[port] += 1
