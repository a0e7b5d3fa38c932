"""Reading from sockets of a loop, and length-prefixed frames on links of no process group."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from trainmover.errors import ProtocolError

__all__ = ["exactly", "next_frame", "send_frame"]

_HEAD_BYTES: Final = 4
_PIECE_BYTES: Final = 1024 * 1024


async def send_frame(sock: socket.socket, data: bytes) -> None:
    """Send ``data``, its length in front."""
    head = len(data).to_bytes(_HEAD_BYTES, "little")
    await asyncio.get_running_loop().sock_sendall(sock, head + data)


async def next_frame(sock: socket.socket, *, limit_bytes: int) -> bytes | None:
    """The next frame; None when the other side closed.

    Raises:
        ProtocolError: It is over the limit.
    """
    head = await exactly(sock, _HEAD_BYTES)
    if head is None:
        return None
    size = int.from_bytes(head, "little")
    if size > limit_bytes:
        raise ProtocolError(f"a frame of {size} bytes is over the limit of {limit_bytes}")
    return await exactly(sock, size)


async def exactly(sock: socket.socket, count: int) -> bytes | None:
    """The next ``count`` bytes; None when the other side closed before."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < count:
        piece = await loop.sock_recv(sock, min(count - len(data), _PIECE_BYTES))
        if not piece:
            return None
        data += piece
    return bytes(data)
