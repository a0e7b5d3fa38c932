"""Listening sockets that are announced before the process that will use them exists."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

from trainmover.errors import ConfigError
from trainmover.job.endpoints import endpoint_of
from trainmover_executor.agent.address import own_address

__all__ = ["Listeners"]

_BACKLOG: Final = 1024


class Listeners:
    """Sockets by (slot, local rank); slot None is what the machine registered with.

    Args:
        host: Address to bind, and to announce; see ``own_address``.
        ranks: Sockets per slot.
        towards: URL of the bus.
    """

    def __init__(self, *, host: str, ranks: int, towards: str = "") -> None:
        self._host = host
        self._towards = towards
        self._ranks = ranks
        self._sockets: dict[tuple[int | None, int], socket.socket] = {}

    def bind(self, slots: Iterable[int | None]) -> dict[int | None, tuple[str, ...]]:
        """Bind fresh sockets.

        Returns:
            ``host:port`` of each local rank, for each slot.

        Raises:
            ConfigError: The address is not one of this host's, or there is no way to the bus.
        """
        # Asked anew each time: a container that was cut off may come back with another address.
        host = own_address(self._host, towards=self._towards)
        return {
            slot: tuple(self._bind_one(host, slot, local_rank) for local_rank in range(self._ranks))
            for slot in slots
        }

    def _bind_one(self, host: str, slot: int | None, local_rank: int) -> str:
        try:
            bound = socket.create_server((host, 0), family=_family(host), backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host!r}: {error}. Pass --host with an address of this "
                "machine that the other machines can reach."
            ) from error
        if (stale := self._sockets.pop((slot, local_rank), None)) is not None:
            stale.close()
        self._sockets[slot, local_rank] = bound
        return endpoint_of(host, bound.getsockname()[1])

    def take(self, slot: int | None, local_rank: int) -> socket.socket:
        """Hand a socket over; whoever takes it closes it."""
        return self._sockets.pop((slot, local_rank))

    def close(self) -> None:
        """Close every socket that was not taken: its port refuses from now on."""
        for bound in self._sockets.values():
            bound.close()
        self._sockets.clear()


def _family(host: str) -> socket.AddressFamily:
    """That of IPv4 where the name has an address of it."""
    families = {each[0] for each in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    return socket.AF_INET if socket.AF_INET in families else families.pop()
