"""Carries a recording from an active rank to the standby process of the same rank."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import structlog
import torch

from trainmover.errors import ProtocolError, TrainMoverError
from trainmover.job.topology import Membership
from trainmover_executor.collectives.sandbox.recording import OF_FILES, Entry, Mark, Recording
from trainmover_executor.links.dialling.endpoint import dial
from trainmover_executor.links.dialling.frames import next_frame, send_frame
from trainmover_executor.links.dialling.handshake import ANY_EPOCH, RECORD_GROUP, LinkRequest
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.state.packing.codec import is_portable
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

__all__ = ["entry_of", "fetch_recording", "serve_recording", "take_in"]

log = structlog.get_logger(__name__)

_FRAME_LIMIT_BYTES: Final = 1024 * 1024
_FIRST_STEP_S: Final = 3600.0
"""An active rank keeps a connection no longer than that; a first step may compile for long."""
_STALLED_S: Final = 30.0
"""Whoever takes nothing for so long, with something to take, has gone."""
_OTHERS: Final = (1, 2, 3)
"""How far the ranks are from one that is dead that are asked in its place."""
_SET_UP_S: Final = 5.0
"""How long one of these is listened to: its set-up may wait for the dead rank."""
_ENTRIES: Final = 1_000_000
"""Operations of the first step; more are no recording of ours."""


async def serve_recording(sock: socket.socket, recording: Recording) -> None:
    """Send everything, what is to come included; ends when the recording does."""
    loop = asyncio.get_running_loop()
    more = asyncio.Event()
    recording.listen(lambda: loop.call_soon_threadsafe(more.set))
    sent = 0
    try:
        while True:
            more.clear()
            complete = recording.complete
            news = recording.since(sent)
            for item in news:
                async with asyncio.timeout(_STALLED_S):
                    await send_frame(sock, _pack(item))
            sent += len(news)
            if complete and not news:
                return
            if not complete:
                async with asyncio.timeout(_FIRST_STEP_S):
                    await more.wait()
    except (OSError, TrainMoverError) as error:  # a timeout is an OSError
        log.debug("the recording was not sent", error=repr(error))  # the standby has gone
    finally:
        sock.close()


async def fetch_recording(
    recording: Recording, *, job: str, rank: int, membership: Membership, secret: LinkSecret
) -> None:
    """Fill ``recording`` with what the active rank of this number has; closes it at the end.

    Where that rank is dead, others tell what they found of files: those are the same for all.
    """

    async def hear(source: int, *, only: str = "") -> None:
        link_request = LinkRequest(
            job=job, epoch=ANY_EPOCH, group=RECORD_GROUP, source=rank, target=source
        )
        sock = await dial(membership.endpoint_of(source), link_request, secret=secret)
        try:
            await take_in(sock, recording, only=only)
        finally:
            sock.close()

    try:
        await hear(rank)
    except (OSError, TrainMoverError) as error:
        # Most programs warm up without; one that does not will say what it misses.
        of, world_size = membership.endpoint_of(rank), membership.layout.world_size
        log.warning("no recording of the first step", rank=rank, of=of, error=str(error))
        await _hear_any(hear, {(rank + by) % world_size for by in _OTHERS} - {rank})
    finally:
        recording.close()
        log.debug("recording", kept_bytes=recording.nbytes, too_large=recording.dropped)


async def _hear_any(hear: Callable[..., Awaitable[None]], sources: Collection[int]) -> None:
    """Hear of files from the first of ``sources`` that answers."""
    for source in sources:
        with contextlib.suppress(OSError, TrainMoverError):  # a timeout is an OSError
            async with asyncio.timeout(_SET_UP_S):
                await hear(source, only=OF_FILES)
            return


async def take_in(sock: socket.socket, recording: Recording, *, only: str = "") -> None:
    """Fill ``recording`` with what ``serve_recording`` sends, until the other side closes.

    Args:
        sock: Where it comes from.
        recording: Where it goes.
        only: How the keys begin of what is taken, up to the first step and without its marks.

    Raises:
        ProtocolError: It does not parse.
    """
    for _ in range(_ENTRIES):
        async with asyncio.timeout(_FIRST_STEP_S):
            data = await next_frame(sock, limit_bytes=_FRAME_LIMIT_BYTES)
        if data is None:
            return
        item = entry_of(data)
        if only and item is Mark.BEGIN:
            return  # that job may be waiting in its first step, for this standby
        if not only or (isinstance(item, Entry) and item.key.startswith(only)):
            recording.add(item)


def _pack(item: Entry | Mark) -> bytes:
    if isinstance(item, Mark):
        return pack_tree({"mark": str(item)})
    tensors = None
    if item.tensors is not None and all(map(is_portable, item.tensors)):
        tensors = list(item.tensors)
    return pack_tree({"key": item.key, "tensors": tensors})


def entry_of(data: bytes) -> Entry | Mark:
    """One entry of a recording.

    Raises:
        ProtocolError: It is none.
    """
    try:
        tree = unpack_tree(data)
        if "mark" in tree:
            return Mark(tree["mark"])
        key, tensors = tree["key"], tree["tensors"]
        known = None if tensors is None else tuple(tensors)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"an entry of a recording does not parse: {error}") from error
    if known is not None and not all(isinstance(each, torch.Tensor) for each in known):
        raise ProtocolError("an entry of a recording holds something else than tensors")
    return Entry(str(key), known)
