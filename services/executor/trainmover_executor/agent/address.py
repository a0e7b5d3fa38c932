"""The address that this machine announces to the others."""

from __future__ import annotations

import contextlib
import ipaddress
from typing import Final

from trainmover.bus.credentials import BusAddress
from trainmover.errors import ConfigError
from trainmover.job.endpoints import is_address
from trainmover.runtime.network import address_towards, addresses_of

__all__ = ["AUTO", "own_address"]

AUTO: Final = "auto"


def own_address(host: str, *, towards: str) -> str:
    """The address to listen on and announce.

    Args:
        host: An address or name of this machine; ``auto`` is the address from which it reaches
            the bus: a container's own one, the right one of several networks.
        towards: URL of the bus, or several separated by commas, of which the first counts.

    Raises:
        ConfigError: The bus's name does not resolve, or nothing leads there; or the name of this
            machine is that of its loopback here, as Debian has it in ``/etc/hosts``.
    """
    bus = BusAddress.parse(towards)
    if host != AUTO:
        _check_name(host, bus)
        return host
    try:
        return address_towards(*bus.host_and_port)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot tell which address of this machine leads to the bus at {str(bus)!r}: {error}. "
            "Pass --host with an address that the other machines can reach."
        ) from error


def _check_name(host: str, bus: BusAddress) -> None:
    if host == "localhost" or is_address(host):
        return
    found = addresses_of(host)
    if found and all(ipaddress.ip_address(each).is_loopback for each in found):
        with contextlib.suppress(OSError, ValueError):
            here = address_towards(*bus.host_and_port)
            if ipaddress.ip_address(here).is_loopback:
                return  # all are on this host
            raise ConfigError(
                f"{host!r} is {', '.join(found)} on this machine (see /etc/hosts), where no other "
                f"one reaches it. Leave --host out: this machine is {here} towards the bus."
            )
