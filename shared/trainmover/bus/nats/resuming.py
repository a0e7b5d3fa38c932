"""Reads facts from the first one on: what was pushed out comes from the copies that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Final

from nats.aio.msg import Msg

from trainmover.bus.kept import KEPT, origin
from trainmover.bus.nats.connection import Connection
from trainmover.bus.nats.reading import OrderedReader
from trainmover.errors import BusUnavailableError
from trainmover.subjects import EVENT_STREAM

__all__ = ["ResumingReader", "place_of"]

_COPIES: Final = frozenset(kept.stream for kept in KEPT)
_RETRY_S: Final = 0.2


def place_of(message: Msg) -> tuple[str, int]:
    """Stream and sequence of a message; of a copy those of the original.

    Raises:
        NotJSMessageError: It is from no stream.
    """
    here = message.metadata
    if here.stream in _COPIES and (copied := origin(message.headers)) is not None:
        return copied
    return here.stream, here.sequence.stream


class ResumingReader:
    """Like an ``OrderedReader`` from the start, with the kept copies of what the stream forgot.

    The copies are read first, and come in the order of the originals. While nothing was ever
    pushed out they are not looked at.

    Args:
        connection: The connection.
        filters: Subjects wanted.
        caught_up: Called once when everything was read that was stored when we began.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        filters: list[str],
        caught_up: Callable[[], None] | None = None,
    ) -> None:
        self._connection = connection
        self._filters = filters
        self._facts = OrderedReader(
            connection,
            stream=EVENT_STREAM,
            filters=filters,
            from_start=True,
            caught_up=caught_up,
        )
        self._readers = [self._facts]
        self._closed = False

    def close(self) -> None:
        """End the iteration; the task that iterates cleans up."""
        self._closed = True
        for reader in self._readers:
            reader.close()

    def age_s(self, stored: datetime) -> float:
        """Seconds since a message was stored; see ``OrderedReader.age_s``."""
        return self._readers[-1].age_s(stored)  # a reader of copies has asked the server before

    async def messages(self) -> AsyncGenerator[Msg, None]:
        """Every message exactly once, endlessly; ends when the bus is closed.

        Raises:
            PermissionDeniedError: This user may not read here.
            BusError: A stream does not exist.
            BusUnavailableError: The bus is not open.
        """
        first = await self._first_stored()
        copies = await self._copies() if first > 1 else []
        while copies and place_of(copies[-1])[1] < first:
            yield copies.pop()
        async with aclosing(self._facts.messages()) as facts:
            async for fact in facts:
                here = fact.metadata.sequence.stream
                # More may have been pushed out since: a reader need not be as fast as a flood.
                while copies and (sequence := place_of(copies[-1])[1]) <= here:
                    copy = copies.pop()
                    if sequence < here:
                        yield copy
                yield fact

    async def _first_stored(self) -> int:
        while not self._closed:
            try:
                async with self._connection.calling(f"read {EVENT_STREAM}"):
                    info = await self._connection.jetstream().stream_info(EVENT_STREAM)
            except BusUnavailableError:
                if self._connection.closing and not self._closed:
                    raise
                await asyncio.sleep(_RETRY_S)
            else:
                return info.state.first_seq
        return 0

    async def _copies(self) -> list[Msg]:
        """All copies that are kept now, the oldest original last."""
        found: list[Msg] = []
        for kept in KEPT:
            if not self._closed:
                found += await self._all_of(kept.stream)
        return sorted(found, key=lambda message: place_of(message)[1], reverse=True)

    async def _all_of(self, stream: str) -> list[Msg]:
        def caught_up() -> None:
            reader.close()

        reader = OrderedReader(
            self._connection,
            stream=stream,
            filters=self._filters,
            from_start=True,
            caught_up=caught_up,
        )
        self._readers.append(reader)
        async with aclosing(reader.messages()) as messages:
            return [message async for message in messages]
