"""Accepting and dialling links: the asynchronous side, run by the control thread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover_executor.links import local
from trainmover_executor.links.handshake import (
    RECORD_GROUP,
    REPLY_SIZE,
    REQUEST_SIZE,
    WATCH_GROUP,
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

    Waits as long as the callee wants to think: a standby answers once it is warm. On one host the
    callee asks for shared memory; the socket is a ``SharedSocket`` then.

    Raises:
        OSError: Nobody listens there.
        StaleEpochError: The callee is at a later epoch.
        ProtocolError: The callee is somebody else.
    """
    sock = await _connect(endpoint)
    try:
        await asyncio.get_running_loop().sock_sendall(sock, hail.pack())
        reply, name = parse_reply(await _exactly(sock, REPLY_SIZE))
        if reply is Reply.SAME_HOST:
            sock.close()
            sock = await local.call(name, hail)
            reply, _ = parse_reply(await _exactly(sock, REPLY_SIZE))
    except BaseException:
        sock.close()
        raise
    if reply is Reply.OK:
        return sock
    sock.close()
    if reply is Reply.STALE_EPOCH:
        raise StaleEpochError(f"{endpoint} refused epoch {hail.epoch}: it is at a later one")
    raise ProtocolError(f"{endpoint} refused the link to rank {hail.target}: {reply.name}")


async def _connect(endpoint: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    host, _, port = endpoint.rpartition(":")
    address = (await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM))[0]
    sock = socket.socket(address[0], socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, address[4])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


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
        self._local = local.LocalListener() if local.links_may_be_local() else None

    def open(self) -> None:
        """Answer calls from now on; before, callers wait."""
        self.opened.set()

    def sockets(self) -> list[socket.socket]:
        """What it listens on."""
        return [self._listener] + ([self._local.socket] if self._local is not None else [])

    async def serve(self) -> None:
        """Accept links until cancelled."""
        try:
            async with asyncio.TaskGroup() as calls:
                calls.create_task(self._listen(self._listener, calls, self._answer_tcp))
                if self._local is not None:
                    calls.create_task(self._listen(self._local.socket, calls, self._answer_local))
        finally:
            if self._local is not None:
                self._local.socket.close()

    async def _listen(
        self,
        listener: socket.socket,
        calls: asyncio.TaskGroup,
        answer: Callable[[socket.socket], Awaitable[None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listener)
            if self._pending >= _PENDING_LIMIT:
                sock.close()
                continue
            self._pending += 1
            calls.create_task(self._guarded(sock, answer))

    async def _guarded(
        self, sock: socket.socket, answer: Callable[[socket.socket], Awaitable[None]]
    ) -> None:
        try:
            sock.setblocking(False)
            await answer(sock)
        except (OSError, TimeoutError, ProtocolError) as error:
            log.warning("link handshake failed", error=str(error))
            sock.close()
        finally:
            self._pending -= 1

    async def _answer_tcp(self, sock: socket.socket) -> None:
        async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
            data = await _exactly(sock, REQUEST_SIZE)
        hail, reply = await self._heard(data)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bulky = hail.group not in {WATCH_GROUP, RECORD_GROUP}
        wanted = reply is Reply.OK and bulky and _from_here(sock)
        if wanted and self._local is not None:
            redirect = pack_reply(Reply.SAME_HOST, name=self._local.name)
            await asyncio.get_running_loop().sock_sendall(sock, redirect)
            sock.close()
        else:
            await self._conclude(hail, reply, sock)

    async def _answer_local(self, sock: socket.socket) -> None:
        async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
            data, linked = await local.receive_hail(sock)
        try:
            hail, reply = await self._heard(data)
            await self._conclude(hail, reply, linked)
        except BaseException:
            linked.close()
            raise

    async def _heard(self, data: bytes) -> tuple[Hail, Reply]:
        hail, ours = Hail.parse(data, job=self._job)
        await self.opened.wait()
        return hail, self._judge(hail, ours=ours)

    async def _conclude(self, hail: Hail, reply: Reply, sock: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, pack_reply(reply))
        if reply is Reply.OK:
            self._accept(hail, sock)
        else:
            log.warning("link refused", reply=reply.name, source=hail.source, epoch=hail.epoch)
            sock.close()

    def _judge(self, hail: Hail, *, ours: bool) -> Reply:
        if not ours:
            return Reply.WRONG_JOB
        if hail.target != self._rank:
            return Reply.WRONG_RANK
        if self._is_stale(hail.epoch):
            return Reply.STALE_EPOCH
        return Reply.OK


def _from_here(sock: socket.socket) -> bool:
    """Whether caller and callee have the same address: the same host, or the same container."""
    here: str = sock.getsockname()[0]
    there: str = sock.getpeername()[0]
    return here == there
