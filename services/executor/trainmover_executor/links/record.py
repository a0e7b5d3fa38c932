"""Carries a recording from an active rank to the standby process of the same rank."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import structlog

from trainmover.errors import TrainMoverError
from trainmover_executor.communicator.recording import Entry, Recording
from trainmover_executor.links.endpoint import dial
from trainmover_executor.links.frames import next_frame, send_frame
from trainmover_executor.links.handshake import ANY_EPOCH, RECORD_GROUP, Hail
from trainmover_executor.state.portable import pack_tree, unpack_tree

__all__ = ["fetch_recording", "serve_recording"]

log = structlog.get_logger(__name__)

_FRAME_LIMIT_BYTES: Final = 1024 * 1024


async def serve_recording(sock: socket.socket, recording: Recording) -> None:
    """Send every entry, those to come included; ends when the recording does."""
    loop = asyncio.get_running_loop()
    more = asyncio.Event()
    recording.listen(lambda: loop.call_soon_threadsafe(more.set))
    sent = 0
    try:
        while True:
            more.clear()
            complete = recording.complete
            entries = recording.since(sent)
            for entry in entries:
                tensors = None if entry.tensors is None else list(entry.tensors)
                await send_frame(sock, pack_tree({"key": entry.key, "tensors": tensors}))
            sent += len(entries)
            if complete and not entries:
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
            while (entry := await _next(sock)) is not None:
                recording.add(entry)
        finally:
            sock.close()
    except (OSError, TrainMoverError) as error:
        # Most programs warm up without; one that does not will say what it misses.
        log.warning("no recording of the first step", rank=rank, of=endpoint, error=str(error))
    finally:
        recording.close()
        log.debug("recording", kept_bytes=recording.nbytes, too_large=recording.dropped)


async def _next(sock: socket.socket) -> Entry | None:
    data = await next_frame(sock, limit_bytes=_FRAME_LIMIT_BYTES)
    if data is None:
        return None
    tree = unpack_tree(data)
    tensors = None if tree["tensors"] is None else tuple(tree["tensors"])
    return Entry(str(tree["key"]), tensors)
