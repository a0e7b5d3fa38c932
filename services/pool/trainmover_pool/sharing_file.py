"""Reads what is declared about a pool, and reads it again while its leader runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from trainmover.policy import PolicyError, Problem
from trainmover.policy.reading import MOST_BYTES
from trainmover.policy.sharing import Sharing, read_sharing
from trainmover_pool.state import Declared

__all__ = ["SharingFile"]

_LOOK_S: Final = 1.0
_MOST: Final = 20


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
        self._seen = self._look()
        return self._read(self._seen)

    async def changes(self) -> AsyncGenerator[Declared, None]:
        """What it says from each change on; it never ends."""
        while True:
            # Looked at instead of watched, as a policy's file is: its disk may be a network's.
            await asyncio.sleep(_LOOK_S)
            found = await asyncio.to_thread(self._look)
            if found == self._seen:
                continue
            self._seen = found
            try:
                yield Declared(self._read(found))
            except PolicyError as error:
                yield Declared(None, tuple(map(str, error.problems[:_MOST])))

    def _look(self) -> bytes | str:
        """The bytes of the file, or why it cannot be read."""
        try:
            with self._path.open("rb") as file:
                return file.read(MOST_BYTES + 1)
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}. Is the path right?"

    def _read(self, content: bytes | str) -> Sharing:
        if isinstance(content, str):
            raise PolicyError([Problem(str(self._path), content)])
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise PolicyError([Problem(str(self._path), "it is no text in UTF-8.")]) from None
        return read_sharing(text, name=str(self._path))
