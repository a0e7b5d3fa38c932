"""The address that this machine announces to the others."""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import urlsplit

from trainmover.errors import ConfigError

__all__ = ["AUTO", "own_address"]

AUTO: Final = "auto"
_BUS_PORT: Final = 4222


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
    first = towards.split(",", maxsplit=1)[0].strip()
    try:
        return _address_towards(*_host_and_port(first))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot tell which address of this machine leads to the bus at {first!r}: {error}. "
            "Pass --host with an address that the other machines can reach."
        ) from error


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if not parts.hostname:
        raise ValueError("it names no host")
    return parts.hostname, parts.port or _BUS_PORT


def _address_towards(host: str, port: int) -> str:
    family, kind, protocol, _, target = socket.getaddrinfo(
        host, port, family=socket.AF_INET, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # asks the kernel for the way there; nothing is sent
        address: str = probe.getsockname()[0]
    return address
