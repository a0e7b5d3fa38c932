"""A network of leaves and spines, as C4 describes its own (arXiv 2406.04594)."""

from __future__ import annotations

from dataclasses import dataclass

from trainmover.errors import ConfigError

__all__ = ["Fabric"]


@dataclass(frozen=True, slots=True)
class Fabric:
    """Machines under leaf switches, and leaf switches under spines.

    A network card has two ports that are bonded, each at a leaf switch of its own: a leaf is two
    switches. Each leaf switch has one uplink to every spine.

    Attributes:
        machines: How many.
        per_leaf: Machines under one leaf.
        rails: Network cards of a machine, one for each GPU.
        ports: Ports of a card.
        port_gbps: Gb/s of a port.
        uplink_gbps: Gb/s of an uplink.
        oversubscription: What a leaf switch takes from below over what it can hand up.
        ceiling_gbps: Most Gb/s that a card carries in a collective, whatever the network.
    """

    machines: int
    per_leaf: int
    rails: int = 8
    ports: int = 2
    port_gbps: float = 200.0
    uplink_gbps: float = 400.0
    oversubscription: float = 1.0
    ceiling_gbps: float = 400.0

    def __post_init__(self) -> None:
        """Refuse what is no network.

        Raises:
            ConfigError: A number is not positive.
        """
        counts = (self.machines, self.per_leaf, self.rails, self.ports)
        speeds = (self.port_gbps, self.uplink_gbps, self.oversubscription, self.ceiling_gbps)
        if min(counts) < 1 or min(speeds) <= 0:
            raise ConfigError(f"every number of a network is positive: {self}")

    @property
    def uplinks(self) -> int:
        """Uplinks of each leaf switch, as many as there are spines."""
        below_gbps = self.per_leaf * self.rails * self.port_gbps
        return max(1, round(below_gbps / self.uplink_gbps / self.oversubscription))

    def leaf_of(self, machine: int) -> int:
        """The leaf of a machine; machines are numbered leaf by leaf."""
        return machine // self.per_leaf
