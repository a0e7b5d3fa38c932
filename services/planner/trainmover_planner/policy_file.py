"""Reads the policy's files, and reads them again while the planner runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import MappingProxyType

from trainmover.events.operator import PolicyChanged, PolicyRefused
from trainmover.policy import Policy, PolicyError, read
from trainmover.runtime.declared import LOOK_S, MOST_PROBLEMS, look_at, text_of
from trainmover_planner.rules.declaring import COMMAND_LINE

__all__ = ["PolicyFiles", "refused"]


class PolicyFiles:
    """What a planner is told about its policy.

    Args:
        file: The policy; None: the command line alone.
        shadow: A policy that only says what it would do.
        options: What the command line says, by field of ``Policy``; comes before the file.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        shadow: Path | None = None,
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._file, self._shadow, self._options = file, shadow, options
        self._seen: tuple[bytes | str | None, ...] = ()

    def load(self) -> PolicyChanged:
        """What is declared now.

        Raises:
            PolicyError: A file or an option is wrong.
        """
        self._seen = self._look()
        return self._read(*self._seen)

    async def changes(self) -> AsyncGenerator[PolicyChanged | PolicyRefused, None]:
        """What is declared from each change of a file on; it never ends."""
        while self._file is not None or self._shadow is not None:
            await asyncio.sleep(LOOK_S)
            # In a thread: a disk of the network may not answer, and the planner must go on.
            found = await asyncio.to_thread(self._look)
            if found == self._seen:
                continue
            self._seen = found
            try:
                yield self._read(*found)
            except PolicyError as error:
                yield refused(error, source=str(self._file or self._shadow))

    def _look(self) -> tuple[bytes | str | None, ...]:
        return tuple(None if path is None else look_at(path) for path in self._paths)

    @property
    def _paths(self) -> tuple[Path | None, Path | None]:
        return self._file, self._shadow

    def _read(self, *content: bytes | str | None) -> PolicyChanged:
        texts = [
            "" if path is None or found is None else text_of(path, found)
            for path, found in zip(self._paths, content, strict=True)
        ]
        shadow: Policy | None = None
        if self._shadow is not None:
            shadow = read(texts[1], name=str(self._shadow))
        source = COMMAND_LINE if self._file is None else str(self._file)
        return PolicyChanged(
            policy=read(texts[0], name=source, options=self._options),
            source=source,
            shadow=shadow,
            shadow_source="" if self._shadow is None else str(self._shadow),
        )


def refused(error: PolicyError, *, source: str) -> PolicyRefused:
    """What is wrong, as a fact."""
    return PolicyRefused(source=source, problems=tuple(map(str, error.problems[:MOST_PROBLEMS])))
