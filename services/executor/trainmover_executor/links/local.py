"""Links between processes of one host: a unix socket that brings shared memory along.

A caller reaches every rank over TCP first. A callee that sees its own address at the other side
answers with the name of a unix socket in the abstract namespace, which exists as long as the
process and only in this network namespace; containers with a network of their own stay on TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
from typing import Final

from trainmover.errors import ConfigError, ProtocolError
from trainmover_executor.links.handshake import REQUEST_SIZE
from trainmover_executor.links.shared import FD_COUNT, SharedMemory, SharedSocket

__all__ = ["NAME_BYTES", "LocalListener", "call", "links_may_be_local", "receive_hail"]

NAME_BYTES: Final = 16
TRANSPORT_VARIABLE: Final = "TRAINMOVER_TRANSPORT"
"""``auto`` (default: shared memory within a host) or ``tcp``, for comparison."""

_CREDENTIALS: Final = struct.Struct("iii")


def links_may_be_local() -> bool:
    """Whether ranks of one host share memory.

    Raises:
        ConfigError: The environment asks for something else than ``auto`` or ``tcp``.
    """
    choice = os.environ.get(TRANSPORT_VARIABLE, "auto")
    if choice not in {"auto", "tcp"}:
        raise ConfigError(f"{TRANSPORT_VARIABLE}={choice!r} is unknown; use 'auto' or 'tcp'.")
    return choice == "auto" and hasattr(os, "memfd_create")


class LocalListener:
    """Listens on a unix socket with a name that nobody can guess.

    Attributes:
        name: ``NAME_BYTES`` bytes, unique on this host.
        socket: The listening socket.
    """

    def __init__(self) -> None:
        self.name = secrets.token_bytes(NAME_BYTES)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.bind(_address(self.name))
        self.socket.listen(128)


def _address(name: bytes) -> bytes:
    return b"\0trainmover/" + name.hex().encode()


async def call(name: bytes, hail: bytes, *, target: int) -> SharedSocket:
    """Connect to a ``LocalListener`` and say the hail; the reply is still to come.

    Args:
        name: Name of its socket.
        hail: The packed hail.
        target: Rank that is called, for people.

    Raises:
        OSError: Nobody listens there, or no descriptors are left.
    """
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, _address(name))
        shared = SharedMemory.create()
    except OSError as error:
        sock.close()
        raise OSError(
            f"cannot share memory with rank {target} on this host: {error}. "
            f"{TRANSPORT_VARIABLE}=tcp does without."
        ) from error
    except BaseException:
        sock.close()
        raise
    linked = SharedSocket(sock, shared)
    try:
        # The first bytes on a fresh socket always fit: this does not block.
        socket.send_fds(linked, [hail], shared.fds)
    except BaseException:
        linked.close()
        raise
    return linked


async def receive_hail(sock: socket.socket) -> tuple[bytes, SharedSocket]:
    """The hail's bytes and the socket with the memory that came with them.

    Raises:
        ProtocolError: The caller belongs to somebody else or sent something else.
    """
    if _owner(sock) != os.getuid():
        raise ProtocolError("a process of another user called on the unix socket")
    await _readable(sock)
    data, fds, _, _ = socket.recv_fds(sock, REQUEST_SIZE, FD_COUNT)
    shared = SharedMemory(list(fds), caller=False)
    if len(data) != REQUEST_SIZE:
        shared.close()
        raise ProtocolError("a stranger called on the unix socket")
    return data, SharedSocket(sock, shared)


def _owner(sock: socket.socket) -> int:
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(packed)
    return int(uid)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        with contextlib.suppress(ValueError):
            loop.remove_reader(sock)
