"""Accepting and dialling links: the asynchronous side, run by the control thread."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover.job.endpoints import split_endpoint
from trainmover.security.secret import SECRET_VARIABLE
from trainmover.tracing.seldom import Seldom
from trainmover_executor.links.dialling.descriptors import room_for_strangers
from trainmover_executor.links.dialling.frames import exactly
from trainmover_executor.links.dialling.handshake import (
    CHALLENGE_SIZE,
    PLAIN_GROUPS,
    REPLY_SIZE,
    REQUEST_SIZE,
    Answer,
    LinkRequest,
    Reply,
)
from trainmover_executor.links.dialling.secret import PROOF_SIZE, LinkSecret, proof, proves
from trainmover_executor.links.shared_memory import local

__all__ = ["Endpoint", "dial"]

warn = Seldom(structlog.get_logger(__name__).warning)

_HANDSHAKE_TIMEOUT_S: Final = 5.0
_NO_ROOM_S: Final = 0.05
"""After an accept that failed: until descriptors may be free again."""

_NO_WAY_FROM_HERE: Final = frozenset(
    {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.ENETUNREACH}
)

_WHY: Final = {
    Reply.WRONG_JOB: "it belongs to another job",
    Reply.WRONG_RANK: "another rank listens there",
    Reply.WRONG_SECRET: "caller and callee have different link secrets. Give every machine of the "
    f"job the same file in {SECRET_VARIABLE}",
}


async def dial(
    endpoint: str, link_request: LinkRequest, *, secret: LinkSecret, here: str | None = None
) -> socket.socket:
    """Connect to ``host:port`` and be accepted.

    Waits as long as the callee wants to think: a standby answers once it is warm. On one host the
    callee asks for shared memory; the socket is a ``SharedSocket`` then.

    Args:
        endpoint: Whom to call.
        link_request: What to say.
        secret: The job's link secret.
        here: Address of this host to call from, where that leads there.

    Raises:
        OSError: Nobody listens there, or no such name is known.
        StaleEpochError: The callee is at a later epoch.
        ProtocolError: The callee is somebody else, or does not know the secret; or it has no
            address, or the request does not fit on the wire.
    """
    answer = Answer(Reply.WRONG_SECRET)
    for known in secret.accepted():
        sock, answer = await _call(endpoint, link_request, known, here=here)
        if answer.reply is Reply.OK:
            return sock
        sock.close()
        if answer.reply is not Reply.WRONG_SECRET:  # else it may not have heard of the new one yet
            break
    if answer.reply is Reply.STALE_EPOCH:
        raise StaleEpochError(
            f"{endpoint} refused epoch {link_request.epoch}: it is at a later one"
        )
    raise ProtocolError(
        f"{endpoint} refused the link to rank {link_request.target}: {_WHY.get(answer.reply, '')}"
    )


async def _call(
    endpoint: str, link_request: LinkRequest, secret: bytes, *, here: str | None
) -> tuple[socket.socket, Answer]:
    request = link_request.pack(secrets.token_bytes(CHALLENGE_SIZE))
    sock = await _connect(endpoint, here=here)
    try:
        await asyncio.get_running_loop().sock_sendall(sock, request)
        answer = await _introduce(sock, request, secret)
        if answer.reply is Reply.SAME_HOST:
            sock.close()
            sock = await local.call(answer.detail, target=link_request.target)
            await asyncio.get_running_loop().sock_sendall(sock, request)
            answer = await _introduce(sock, request, secret)
            if answer.reply is Reply.OK:
                sock = local.hand_over_memory(sock, target=link_request.target)
                await _exactly(sock, len(local.TAKEN))  # whoever returns from here was accepted
    except BaseException:
        sock.close()
        raise
    return sock, answer


async def _introduce(sock: socket.socket, request: bytes, secret: bytes) -> Answer:
    """Prove that this side knows the secret, and see to it that the other one does.

    Raises:
        ProtocolError: It does not.
    """
    answer = Answer.parse(await _exactly(sock, REPLY_SIZE))
    if answer.reply is not Reply.CHALLENGE:
        return answer if answer.reply is not Reply.OK else Answer(Reply.WRONG_SECRET)
    said = request + answer.detail
    shown = proof(secret, side="caller", said=said)
    await asyncio.get_running_loop().sock_sendall(sock, shown)
    answer = Answer.parse(await _exactly(sock, REPLY_SIZE))
    if answer.reply is Reply.OK and not proves(answer.proof, secret, side="callee", said=said):
        return Answer(Reply.WRONG_SECRET)
    return answer


async def _connect(endpoint: str, *, here: str | None) -> socket.socket:
    try:
        return await _connect_from(endpoint, here)
    except OSError as error:
        if here is None or error.errno not in _NO_WAY_FROM_HERE:
            raise
    return await _connect_from(endpoint, None)


async def _connect_from(endpoint: str, here: str | None) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        host, port = split_endpoint(endpoint)
        address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    except (ValueError, LookupError, OverflowError) as error:  # an odd name may be a UnicodeError
        raise ProtocolError(f"{endpoint[:100]!r} cannot be called: {error}") from error
    sock = socket.socket(address[0], socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if here is not None:
            sock.bind((here, 0))
        await loop.sock_connect(sock, address[4])
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


async def _exactly(sock: socket.socket, count: int) -> bytes:
    data = await exactly(sock, count)
    if data is None:
        raise ConnectionResetError("the other side closed during the handshake")
    return data


@dataclass(frozen=True, slots=True)
class _Proven:
    """The secret that a caller knows, and all that was said until it showed that."""

    secret: bytes
    said: bytes


class Endpoint:
    """The listening socket of one rank.

    Args:
        listener: Bound and listening socket.
        job: Only links of this job are accepted.
        rank: Only links to this rank are accepted.
        secret: Only callers that know it are talked to.
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
        secret: LinkSecret,
        is_stale: Callable[[int], bool],
        accept: Callable[[LinkRequest, socket.socket], None],
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._job = job
        self._rank = rank
        self._secret = secret
        self._is_stale = is_stale
        self._accept = accept
        self.opened = asyncio.Event()
        self._strangers: dict[socket.socket, None] = {}
        self._room = room_for_strangers()
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
            for stranger in self._strangers:
                stranger.close()
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
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:  # no descriptors left, or the caller has gone already
                warn("a link was not accepted", error=str(error))
                self._make_room()
                await asyncio.sleep(_NO_ROOM_S)
                continue
            self._strangers[sock] = None
            if len(self._strangers) > self._room:
                self._make_room()
            calls.create_task(self._guarded(sock, answer))

    def _make_room(self) -> None:
        """Whoever calls and says nothing makes room for whoever calls now."""
        if self._strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    async def _guarded(
        self, sock: socket.socket, answer: Callable[[socket.socket], Awaitable[None]]
    ) -> None:
        try:
            sock.setblocking(False)
            await answer(sock)
        except (OSError, TimeoutError, ProtocolError) as error:
            warn("link handshake failed", error=str(error) or type(error).__name__)
            sock.close()
        except BaseException:
            sock.close()
            raise
        finally:
            self._strangers.pop(sock, None)

    async def _answer_tcp(self, sock: socket.socket) -> None:
        if (call := await self._heard(sock)) is None:
            return
        link_request, reply, proven = call
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wanted = reply is Reply.OK and link_request.group not in PLAIN_GROUPS and _from_here(sock)
        if wanted and self._local is not None:
            redirect = Answer(Reply.SAME_HOST, self._local.name).pack()
            await asyncio.get_running_loop().sock_sendall(sock, redirect)
            sock.close()
        elif await self._told(link_request, reply, sock, proven):
            self._accept(link_request, sock)

    async def _answer_local(self, sock: socket.socket) -> None:
        local.check_owner(sock)
        if (call := await self._heard(sock)) is None:
            return
        link_request, reply, proven = call
        if await self._told(link_request, reply, sock, proven):
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                linked = await local.receive_memory(sock)
            try:
                await asyncio.get_running_loop().sock_sendall(linked, local.TAKEN)
                self._accept(link_request, linked)
            except BaseException:
                linked.close()
                raise

    async def _heard(self, sock: socket.socket) -> tuple[LinkRequest, Reply, _Proven] | None:
        """The request of a caller that knows a secret, what we think of it, and how it was proven.

        None when the caller does not know it, and was told so.
        """
        async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
            request = await _exactly(sock, REQUEST_SIZE)
            link_request, ours = LinkRequest.parse(request, job=self._job)
            proven = await self._examine(sock, link_request, request)
        if proven is None:
            return None
        self._strangers.pop(sock, None)
        await self.opened.wait()
        return link_request, self._judge(link_request, ours=ours), proven

    async def _examine(
        self, sock: socket.socket, link_request: LinkRequest, request: bytes
    ) -> _Proven | None:
        """By what the caller proved that it belongs to the job, else None."""
        loop = asyncio.get_running_loop()
        challenge = secrets.token_bytes(CHALLENGE_SIZE)
        await loop.sock_sendall(sock, Answer(Reply.CHALLENGE, challenge).pack())
        said = request + challenge
        shown = await _exactly(sock, PROOF_SIZE)
        for known in self._secret.accepted():
            if proves(shown, known, side="caller", said=said):
                return _Proven(known, said)
        warn(
            "link refused",
            reply="WRONG_SECRET",
            source=link_request.source,
            epoch=link_request.epoch,
        )
        await loop.sock_sendall(sock, Answer(Reply.WRONG_SECRET).pack())
        sock.close()
        return None

    async def _told(
        self, link_request: LinkRequest, reply: Reply, sock: socket.socket, proven: _Proven
    ) -> bool:
        """Tell a proven caller what we think of its call, and prove ourselves; True if it is OK."""
        shown = proof(proven.secret, side="callee", said=proven.said)
        await asyncio.get_running_loop().sock_sendall(sock, Answer(reply, proof=shown).pack())
        if reply is Reply.OK:
            return True
        warn("link refused", reply=reply.name, source=link_request.source, epoch=link_request.epoch)
        sock.close()
        return False

    def _judge(self, link_request: LinkRequest, *, ours: bool) -> Reply:
        if not ours:
            return Reply.WRONG_JOB
        if link_request.target != self._rank:
            return Reply.WRONG_RANK
        if self._is_stale(link_request.epoch):
            return Reply.STALE_EPOCH
        return Reply.OK


def _from_here(sock: socket.socket) -> bool:
    """Whether caller and callee have the same address: the same host, or the same container."""
    here: str = sock.getsockname()[0]
    there: str = sock.getpeername()[0]
    return here == there
