"""Links between processes of one host: a unix socket that brings shared memory along.

A caller reaches every rank over TCP first. A callee that sees its own address at the other side
answers with the name of a unix socket in the abstract namespace, which exists as long as the
process and only in this network namespace; containers with a network of their own stay on TCP.
The handshake comes first on that socket, too: memory is handed over to nobody but a proven callee.
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
from trainmover_executor.links.shared_memory.slots import FD_COUNT, SharedMemory, SharedSocket

__all__ = [
    "NAME_BYTES",
    "TAKEN",
    "LocalListener",
    "call",
    "check_owner",
    "hand_over_memory",
    "links_may_be_local",
    "receive_memory",
]

NAME_BYTES: Final = 16
TRANSPORT_VARIABLE: Final = "TRAINMOVER_TRANSPORT"
"""``auto`` (default: shared memory within a host) or ``tcp``, for comparison."""

_HANDED_OVER: Final = b"\1"
"""Travels with the descriptors, which need company."""

TAKEN: Final = b"\2"
"""The callee has the memory."""

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


async def call(name: bytes, *, target: int) -> socket.socket:
    """Connect to a ``LocalListener``; the handshake is still to come.

    Args:
        name: Name of its socket.
        target: Rank that is called, for people.

    Raises:
        OSError: Nobody listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, _address(name))
    except OSError as error:
        sock.close()
        raise _impossible(target, error) from error
    except BaseException:
        sock.close()
        raise
    return sock


def hand_over_memory(sock: socket.socket, *, target: int) -> SharedSocket:
    """Share memory with a callee that has proved itself; the link that it makes.

    Raises:
        OSError: No descriptors are left.
    """
    try:
        shared = SharedMemory.create()
    except OSError as error:
        sock.close()
        raise _impossible(target, error) from error
    linked = SharedSocket(sock, shared)
    try:
        # After a handshake in which each waits for the other there is room: this does not block.
        socket.send_fds(linked, [_HANDED_OVER], shared.fds)
    except BaseException:
        linked.close()
        raise
    return linked


async def receive_memory(sock: socket.socket) -> SharedSocket:
    """The link with the memory of a caller that has proved itself.

    Raises:
        ProtocolError: The caller sent something else.
    """
    await _readable(sock)
    data, fds, _, _ = socket.recv_fds(sock, len(_HANDED_OVER), FD_COUNT)
    shared = SharedMemory(list(fds), caller=False)
    if data != _HANDED_OVER:
        shared.close()
        raise ProtocolError("the caller of a link sent something else than shared memory")
    return SharedSocket(sock, shared)


def check_owner(sock: socket.socket) -> None:
    """See to it that the caller is a process of ours.

    Raises:
        ProtocolError: It belongs to another user.
    """
    if _owner(sock) != os.getuid():
        raise ProtocolError("a process of another user called on the unix socket")


def _impossible(target: int, error: OSError) -> OSError:
    return OSError(
        f"cannot share memory with rank {target} on this host: {error}. "
        f"{TRANSPORT_VARIABLE}=tcp does without."
    )


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
