"""The address that this machine announces to the others."""

from __future__ import annotations

from typing import Final

from trainmover.bus.credentials import BusAddress
from trainmover.errors import ConfigError
from trainmover.runtime.network import address_towards

__all__ = ["AUTO", "own_address"]

AUTO: Final = "auto"


def own_address(host: str, *, towards: str) -> str:
    """The address to listen on and announce.

    Args:
        host: An address or name of this machine; ``auto`` is the address from which it reaches
            the bus: a container's own one, the right one of several networks.
        towards: URL of the bus, or several separated by commas, of which the first counts.

    Raises:
        ConfigError: The bus's name does not resolve, or nothing leads there.
    """
    if host != AUTO:
        return host
    bus = BusAddress.parse(towards)
    try:
        return address_towards(*bus.host_and_port)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot tell which address of this machine leads to the bus at {str(bus)!r}: {error}. "
            "Pass --host with an address that the other machines can reach."
        ) from error
