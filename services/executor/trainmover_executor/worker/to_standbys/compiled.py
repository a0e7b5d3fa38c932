"""Carries what an active rank compiled to the standby process of the same rank.

The active rank lists its files, the standby answers with those that it lacks, and gets them one
after the other. What is cut off in the middle is not kept.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Final

import structlog

from trainmover.errors import ProtocolError
from trainmover_executor.links.dialling.endpoint import dial
from trainmover_executor.links.dialling.frames import next_frame, send_frame
from trainmover_executor.links.dialling.handshake import ANY_EPOCH, COMPILED_GROUP, LinkRequest
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.worker.to_standbys import compiled_folder as compiled
from trainmover_executor.worker.to_standbys.compiled_folder import OFFER_LIMIT_BYTES, CompiledFile

__all__ = ["fetch_compiled", "serve_compiled"]

log = structlog.get_logger(__name__)

_PIECE_BYTES: Final = 1024 * 1024
_PATIENCE_S: Final = 10.0
"""A standby waits that long for the next piece before it compiles by itself."""
_TRANSFER_S: Final = 600.0
"""An active rank keeps a connection no longer than that, whatever the standby does."""


async def serve_compiled(sock: socket.socket, *, ready: bool) -> None:
    """Send what a standby asks for.

    Args:
        sock: The standby.
        ready: Whether there is something that is worth having: a first step was committed.
    """
    folder = compiled.folder_in_use() if ready else None
    try:
        async with asyncio.timeout(_TRANSFER_S):
            if folder is None:
                await send_frame(sock, compiled.pack(()))
            else:
                await _offer(sock, folder)
    except Exception as error:  # noqa: BLE001 - a favour must not end a rank that trains
        log.debug("compiled code was not sent", error=repr(error))
    finally:
        sock.close()


async def _offer(sock: socket.socket, folder: Path) -> None:
    loop = asyncio.get_running_loop()
    # Neither the walk nor the copying may keep this loop, or the training thread, from running.
    files = await asyncio.to_thread(compiled.offers, folder, now=time.time())
    await send_frame(sock, compiled.pack(files))
    answer = await next_frame(sock, limit_bytes=OFFER_LIMIT_BYTES)
    chosen = compiled.parse(answer or b"[]")
    if not set(chosen) <= set(files):
        raise ProtocolError("the standby asks for what was not offered")
    for file in chosen:
        with (folder / file.name).open("rb") as source:
            if file.size and await loop.sock_sendfile(sock, source, 0, file.size) != file.size:
                raise ProtocolError(f"{file.name} has changed")  # closing tells the standby


async def fetch_compiled(*, job: str, rank: int, endpoint: str, secret: LinkSecret) -> None:
    """Complete the folder of this process with what the active rank at ``endpoint`` compiled."""
    began = time.monotonic()
    link_request = LinkRequest(
        job=job, epoch=ANY_EPOCH, group=COMPILED_GROUP, source=rank, target=rank
    )
    try:
        async with asyncio.timeout(_PATIENCE_S):
            sock = await dial(endpoint, link_request, secret=secret)
        try:
            taken = await _take(sock)
        finally:
            sock.close()
    except Exception as error:  # noqa: BLE001 - it compiles by itself then
        log.warning("compiled code did not come", rank=rank, of=endpoint, error=repr(error))
        return
    if taken:
        log.info(
            "compiled code came",
            of=endpoint,
            files=len(taken),
            nbytes=sum(file.size for file in taken),
            took_s=round(time.monotonic() - began, 3),
        )


async def _take(sock: socket.socket) -> tuple[CompiledFile, ...]:
    async with asyncio.timeout(_PATIENCE_S):
        offered = compiled.parse(await next_frame(sock, limit_bytes=OFFER_LIMIT_BYTES) or b"[]")
    if not offered:
        return ()
    folder = await asyncio.to_thread(compiled.folder_to_use)
    chosen = compiled.wanted(offered, folder)
    await send_frame(sock, compiled.pack(chosen))
    for file in chosen:
        await _keep(sock, file, folder)
    return chosen


async def _keep(sock: socket.socket, file: CompiledFile, folder: Path) -> None:
    loop = asyncio.get_running_loop()
    with compiled.arriving(file, folder) as target:
        missing = file.size
        while missing:
            async with asyncio.timeout(_PATIENCE_S):
                piece = await loop.sock_recv(sock, min(missing, _PIECE_BYTES))
            if not piece:
                raise ProtocolError(f"{file.name} ended {missing} bytes early")
            target.write(piece)
            missing -= len(piece)
