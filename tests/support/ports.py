"""Ports for programs that must be told one."""

from __future__ import annotations

import errno
import random
import socket

RANGE = range(20_000, 32_000)
"""Below those that Linux takes by itself, for connections and where a program asks for any:
one of them would be free now and a connection's by the time that it is listened on."""

_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on and no other test process is given.

    Raises:
        OSError: All are taken.
    """
    for port in random.sample(RANGE, len(RANGE)):
        if _reserve(port) and _is_free(port):
            return port
    raise OSError(errno.EADDRINUSE, f"no port of {RANGE} is free: do other tests run?")


def _reserve(port: int) -> bool:
    """A name in the system's abstract namespace, which ends with this process."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0trainmover-test-port-{port}")
    except OSError:
        holder.close()
        return False
    _reserved.append(holder)
    return True


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
