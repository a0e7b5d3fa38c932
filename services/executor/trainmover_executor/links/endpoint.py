"""Accepting and dialling links: the asynchronous side, run by the control thread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import structlog

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover_executor.links.handshake import (
    REPLY_SIZE,
    REQUEST_SIZE,
    Hail,
    Reply,
    pack_reply,
    parse_reply,
)

__all__ = ["Endpoint", "dial"]

log = structlog.get_logger(__name__)

_HANDSHAKE_TIMEOUT_S: Final = 5.0
_PENDING_LIMIT: Final = 1024


async def dial(endpoint: str, hail: Hail) -> socket.socket:
    """Connect to ``host:port`` and be accepted.

    Waits as long as the callee wants to think: a standby answers once it is warm.

    Raises:
        OSError: Nobody listens there.
        StaleEpochError: The callee is at a later epoch.
        ProtocolError: The callee is somebody else.
    """
    loop = asyncio.get_running_loop()
    host, _, port = endpoint.rpartition(":")
    address = (await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM))[0]
    sock = socket.socket(address[0], socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, address[4])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_sendall(sock, hail.pack())
        reply = parse_reply(await _exactly(sock, REPLY_SIZE))
    except BaseException:
        sock.close()
        raise
    if reply is Reply.OK:
        return sock
    sock.close()
    if reply is Reply.STALE_EPOCH:
        raise StaleEpochError(f"{endpoint} refused epoch {hail.epoch}: it is at a later one")
    raise ProtocolError(f"{endpoint} refused the link to rank {hail.target}: {reply.name}")


async def _exactly(sock: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < count:
        piece = await loop.sock_recv(sock, count - len(data))
        if not piece:
            raise ConnectionResetError("the other side closed during the handshake")
        data += piece
    return data


class Endpoint:
    """The listening socket of one rank.

    Args:
        listener: Bound and listening socket.
        job: Only links of this job are accepted.
        rank: Only links to this rank are accepted.
        is_stale: Whether an epoch is over.
        accept: Called with each accepted link.

    Attributes:
        opened: Set once calls are answered.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        job: str,
        rank: int,
        is_stale: Callable[[int], bool],
        accept: Callable[[Hail, socket.socket], None],
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._job = job
        self._rank = rank
        self._is_stale = is_stale
        self._accept = accept
        self.opened = asyncio.Event()
        self._pending = 0

    def open(self) -> None:
        """Answer calls from now on; before, callers wait."""
        self.opened.set()

    async def serve(self) -> None:
        """Accept links until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as calls:
            while True:
                sock, _ = await loop.sock_accept(self._listener)
                if self._pending >= _PENDING_LIMIT:
                    sock.close()
                    continue
                self._pending += 1
                calls.create_task(self._answer(sock))

    async def _answer(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                hail, ours = Hail.parse(await _exactly(sock, REQUEST_SIZE), job=self._job)
            await self.opened.wait()
            reply = self._judge(hail, ours=ours)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_sendall(sock, pack_reply(reply))
            if reply is Reply.OK:
                self._accept(hail, sock)
            else:
                log.warning("link refused", reply=reply.name, source=hail.source, epoch=hail.epoch)
                sock.close()
        except (OSError, TimeoutError, ProtocolError) as error:
            log.warning("link handshake failed", error=str(error))
            sock.close()
        finally:
            self._pending -= 1

    def _judge(self, hail: Hail, *, ours: bool) -> Reply:
        if not ours:
            return Reply.WRONG_JOB
        if hail.target != self._rank:
            return Reply.WRONG_RANK
        if self._is_stale(hail.epoch):
            return Reply.STALE_EPOCH
        return Reply.OK
