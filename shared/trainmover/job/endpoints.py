"""``host:port`` as it stands in facts and memberships: checked where it enters, split in one place.

Everybody dials what one machine announces, so an endpoint that cannot be one must not get that far.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Final

from pydantic import AfterValidator

from trainmover.job.numbers import decimal

__all__ = ["Endpoint", "endpoint_of", "is_address", "split_endpoint"]

_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_NAME_CHARACTERS: Final = 253
_PORT_DIGITS: Final = 5
_LARGEST_PORT: Final = 2**16 - 1


def endpoint_of(host: str, port: int) -> str:
    """``host:port``, an address of IPv6 in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host, without brackets, and port.

    Raises:
        ValueError: It is not the address or the name of a host, a colon, and the number of a port.
    """
    host, _, port = endpoint.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    known = _NAME.fullmatch(host) and len(host) <= _NAME_CHARACTERS
    number = decimal(port, digits=_PORT_DIGITS)
    if not (known or is_address(host)) or number is None or number > _LARGEST_PORT:
        raise ValueError(f"{endpoint[:100]!r} is no endpoint: it takes HOST:PORT")
    return host, number


def is_address(host: str) -> bool:
    """Whether it is an address of IPv4 or IPv6, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _checked(endpoint: str) -> str:
    split_endpoint(endpoint)
    return endpoint


Endpoint = Annotated[str, AfterValidator(_checked)]
"""``host:port`` that can be dialled, whoever may listen there."""
