"""Reads what is declared about a pool, and reads it again while its leader runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from trainmover.policy import PolicyError
from trainmover.policy.sharing import Sharing, read_sharing
from trainmover.runtime.declared import LOOK_S, MOST_PROBLEMS, look_at, text_of
from trainmover_pool.state import Declared

__all__ = ["SharingFile"]


class SharingFile:
    """The file of a pool.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: bytes | str | None = None

    def load(self) -> Sharing:
        """What it says now.

        Raises:
            PolicyError: It is wrong, or cannot be read.
        """
        self._seen = look_at(self._path)
        return self._read(self._seen)

    async def changes(self) -> AsyncGenerator[Declared, None]:
        """What it says from each change on; it never ends."""
        while True:
            await asyncio.sleep(LOOK_S)
            # In a thread: a disk of the network may not answer, and the leader must go on.
            found = await asyncio.to_thread(look_at, self._path)
            if found == self._seen:
                continue
            self._seen = found
            try:
                yield Declared(self._read(found))
            except PolicyError as error:
                yield Declared(None, tuple(map(str, error.problems[:MOST_PROBLEMS])))

    def _read(self, content: bytes | str) -> Sharing:
        return read_sharing(text_of(self._path, content), name=str(self._path))
