"""The way from this host to others."""

from __future__ import annotations

import socket

__all__ = ["address_towards", "addresses_of"]


def address_towards(host: str, port: int) -> str:
    """The address of this host from which it reaches another; one of IPv4 where there is one.

    Raises:
        OSError: The name does not resolve, or nothing leads there.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    for family, kind, protocol, _, target in found[:-1]:
        try:
            return _asked(family, kind, protocol, target)
        except OSError:  # a host without that family
            continue
    family, kind, protocol, _, target = found[-1]
    return _asked(family, kind, protocol, target)


def addresses_of(host: str) -> list[str]:
    """What a name stands for on this host; nothing where nobody knows it."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(each[4][0]).partition("%")[0] for each in found})


def _asked(family: int, kind: int, protocol: int, target: object) -> str:
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # type: ignore[arg-type]  # asks the kernel; nothing is sent
        address: str = probe.getsockname()[0]
    return address
