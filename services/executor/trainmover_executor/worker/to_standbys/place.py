"""Carries places from an active rank to the standbys of the same rank, through replacements of it.

A standby calls the active rank of its number and hears memberships and places, as they change.
When the link ends, another rank says who is its rank now: the standby calls any and hears the
membership of now.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from trainmover.errors import ProtocolError, TrainMoverError
from trainmover.job.topology import Membership
from trainmover_executor.links.dialling.endpoint import dial
from trainmover_executor.links.dialling.frames import next_frame, send_frame
from trainmover_executor.links.dialling.handshake import ANY_EPOCH, PLACE_GROUP, LinkRequest
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree
from trainmover_executor.worker.to_standbys.places import Places

__all__ = ["PlaceLinks", "packed"]

log = structlog.get_logger(__name__)

_PERIOD_S: Final = 0.5
_LEAST_S: Final = 0.02
"""Between two places that are sent: more of them would compete with training for the processor."""
_QUIET_S: Final = 2.0
_DEAD_S: Final = 10.0
_CALL_S: Final = 5.0
_ASKED: Final = 8
_FRAME_LIMIT_BYTES: Final = 512 * 1024 * 1024
"""Work between steps may return as much."""
_UNHEARD: Final = (OSError, TimeoutError, ValueError, KeyError, TrainMoverError)
"""The other side is gone, or is not what it should be."""


class PlaceLinks:
    """Both ends of the links that carry places; on the control thread only.

    Args:
        job: The job's name.
        rank: Of this process.
        secret: Proves links.
        places: What is sent, and what is received.
        membership: Of now, as far as this process knows.
    """

    def __init__(
        self,
        *,
        job: str,
        rank: int,
        secret: LinkSecret,
        places: Places,
        membership: Callable[[], Membership],
    ) -> None:
        self._job = job
        self._rank = rank
        self._secret = secret
        self._places = places
        self._membership = membership
        self._open: set[socket.socket] = set()
        self._waiting: set[asyncio.Event] = set()
        self._packed = (0, b"")

    def sockets(self) -> list[socket.socket]:
        """Those of all links."""
        return list(self._open)

    # -- at an active rank -----------------------------------------------------------------------

    async def serve(self, link_request: LinkRequest, sock: socket.socket) -> None:
        """Tell whoever has called; ends when it has gone, or needs to know no more."""
        own = link_request.source == self._rank
        self._open.add(sock)
        self._places.listeners += own
        try:
            if own:
                await self._tell(sock)
            else:
                await self._say_membership(sock, self._membership())
        except OSError:
            pass  # it has gone
        finally:
            self._places.listeners -= own
            self._open.discard(sock)
            sock.close()

    async def _tell(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        epoch, shown, spoken = -1, 0, loop.time()
        sent: frozenset[str] = frozenset()
        self._places.on_show(partial(self._wake_soon, loop))
        while True:
            membership = self._membership()
            number, tree = self._places.shown
            data = b""
            if membership.epoch != epoch:
                epoch = membership.epoch
                await self._say_membership(sock, membership)
                spoken = loop.time()
            if number != shown:
                shown = number
                data = self._packed_once(number, tree)
                sent = await _send_blobs(sock, tree, sent)
            if data or loop.time() - spoken > _QUIET_S:
                await send_frame(sock, data)
                spoken = loop.time()
            await self._await_more(shown)

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def _await_more(self, shown: int) -> None:
        """Return when there is another place, or for a sign of life."""
        await asyncio.sleep(_LEAST_S)
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            if self._places.shown[0] == shown:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PERIOD_S):
                        await event.wait()
        finally:
            self._waiting.discard(event)

    def _packed_once(self, number: int, tree: Any) -> bytes:
        """Packed for the first of all standbys that hear of it."""
        if self._packed[0] != number:
            self._packed = (number, packed(tree))
        return self._packed[1]

    async def _say_membership(self, sock: socket.socket, membership: Membership) -> None:
        await send_frame(sock, pack_tree({"membership": membership.model_dump_json()}))

    # -- at a standby ----------------------------------------------------------------------------

    async def follow(self, *, wanted: Callable[[], bool]) -> None:
        """Hear where the active rank is, whichever process that is, as long as it is ``wanted``."""
        known = self._membership()
        attempt = 0
        while wanted():
            heard = await self._hear(known)
            attempt = 0 if heard.epoch != known.epoch else attempt + 1
            if wanted():
                known = _newer(heard, await self._ask(heard, attempt))
                await asyncio.sleep(_PERIOD_S)

    async def _hear(self, known: Membership) -> Membership:
        """Listen to the rank of ``known`` until it ends; the newest membership it told of."""
        endpoint = known.endpoint_of(self._rank)
        try:
            async with asyncio.timeout(_CALL_S):
                sock = await self._call(known, self._rank)
        except _UNHEARD as error:
            log.debug("no place of the active rank", rank=self._rank, error=str(error))
            return known
        self._open.add(sock)
        blobs: dict[str, Any] = {}
        try:
            while (tree := await self._next(sock)) is not None:
                blobs |= tree.get("blobs", {})
                if "membership" in tree:
                    known = _newer(known, Membership.model_validate_json(tree["membership"]))
                    if known.endpoint_of(self._rank) != endpoint:
                        break  # it has left its slot, and does not know where training is
                elif "place" in tree:
                    blobs = {digest: blobs[digest] for digest in tree.get("refers", ())}
                    tree["place"]["place"]["blobs"] = blobs
                    self._places.see(tree["place"])
        except _UNHEARD as error:
            log.debug("place link ended", rank=self._rank, error=str(error))
        finally:
            self._open.discard(sock)
            sock.close()
        return known

    async def _ask(self, known: Membership, attempt: int) -> Membership:
        """The membership of now, by the word of ranks of other machines."""
        layout = known.layout
        slot = layout.slot_of(self._rank)
        distances = range(1, layout.slots)
        for index in range(min(_ASKED, len(distances))):
            distance = distances[(index + attempt * _ASKED) % len(distances)]
            other = layout.ranks_of((slot + distance) % layout.slots)[0]
            with contextlib.suppress(*_UNHEARD):
                async with asyncio.timeout(_CALL_S):
                    sock = await self._call(known, other)
                    try:
                        tree = await self._next(sock)
                    finally:
                        sock.close()
                if tree is not None:
                    return Membership.model_validate_json(tree["membership"])
        return known

    async def _call(self, known: Membership, rank: int) -> socket.socket:
        link_request = LinkRequest(
            job=self._job, epoch=ANY_EPOCH, group=PLACE_GROUP, source=self._rank, target=rank
        )
        return await dial(known.endpoint_of(rank), link_request, secret=self._secret)

    async def _next(self, sock: socket.socket) -> dict[str, Any] | None:
        async with asyncio.timeout(_DEAD_S):
            data = await next_frame(sock, limit_bytes=_FRAME_LIMIT_BYTES)
        if not data:
            return None if data is None else {}
        tree = unpack_tree(data)
        if not isinstance(tree, dict):
            raise ProtocolError(f"a place link carries a {type(tree).__name__}")
        return tree


def _newer(one: Membership, other: Membership) -> Membership:
    return other if other.epoch > one.epoch else one


async def _send_blobs(sock: socket.socket, tree: Any, sent: frozenset[str]) -> frozenset[str]:
    """Send what ``tree`` refers to, and is not among those ``sent``; all that are there then."""
    blobs = tree["place"]["blobs"]
    for digest in blobs.keys() - sent:
        await send_frame(sock, pack_tree({"blobs": {digest: blobs[digest]}}))
    return frozenset(blobs)


def packed(tree: Any) -> bytes:
    """``tree`` for the wire, without its blobs; empty if it can't be packed: the next one may."""
    try:
        place = tree["place"]
        rest = {**tree, "place": {**place, "blobs": {}}}
        return pack_tree({"place": rest, "refers": list(place["blobs"])})
    except (RuntimeError, TypeError, ValueError, TrainMoverError) as error:
        log.debug("a place cannot be sent", error=str(error))
        return b""
