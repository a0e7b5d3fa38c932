"""Carries a recording from an active rank to the standby process of the same rank."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import structlog

from trainmover.errors import ProtocolError, TrainMoverError
from trainmover_executor.communicator.recording import Entry, Mark, Recording
from trainmover_executor.links.endpoint import dial
from trainmover_executor.links.frames import next_frame, send_frame
from trainmover_executor.links.handshake import ANY_EPOCH, RECORD_GROUP, Hail
from trainmover_executor.state.codec import is_portable
from trainmover_executor.state.portable import pack_tree, unpack_tree

__all__ = ["fetch_recording", "serve_recording", "take_in"]

log = structlog.get_logger(__name__)

_FRAME_LIMIT_BYTES: Final = 1024 * 1024


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
                await send_frame(sock, _pack(item))
            sent += len(news)
            if complete and not news:
                return
            if not complete:
                await more.wait()
    except OSError:
        return  # the standby has gone
    finally:
        sock.close()


async def fetch_recording(
    recording: Recording, *, job: str, rank: int, endpoint: str, secret: bytes
) -> None:
    """Fill ``recording`` with what the active rank at ``endpoint`` has; closes it at the end."""
    try:
        hail = Hail(job=job, epoch=ANY_EPOCH, group=RECORD_GROUP, source=rank, target=rank)
        sock = await dial(endpoint, hail, secret=secret)
        try:
            await take_in(sock, recording)
        finally:
            sock.close()
    except (OSError, TrainMoverError) as error:
        # Most programs warm up without; one that does not will say what it misses.
        log.warning("no recording of the first step", rank=rank, of=endpoint, error=str(error))
    finally:
        recording.close()
        log.debug("recording", kept_bytes=recording.nbytes, too_large=recording.dropped)


async def take_in(sock: socket.socket, recording: Recording) -> None:
    """Fill ``recording`` with what ``serve_recording`` sends, until the other side closes.

    Raises:
        ProtocolError: It does not parse.
    """
    while (data := await next_frame(sock, limit_bytes=_FRAME_LIMIT_BYTES)) is not None:
        recording.add(_unpack(data))


def _pack(item: Entry | Mark) -> bytes:
    if isinstance(item, Mark):
        return pack_tree({"mark": str(item)})
    tensors = None
    if item.tensors is not None and all(map(is_portable, item.tensors)):
        tensors = list(item.tensors)
    return pack_tree({"key": item.key, "tensors": tensors})


def _unpack(data: bytes) -> Entry | Mark:
    tree = unpack_tree(data)
    try:
        if "mark" in tree:
            return Mark(tree["mark"])
        tensors = None if tree["tensors"] is None else tuple(tree["tensors"])
        return Entry(str(tree["key"]), tensors)
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"an entry of a recording does not parse: {error}") from error
