"""Which facts are wanted: patterns over ``entity.fact``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from trainmover.errors import ConfigError
from trainmover.events.catalog import CATALOG

__all__ = ["Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The kinds of facts that some patterns name.

    Attributes:
        names: For example ``migration.committed``.
    """

    names: frozenset[str]

    @classmethod
    def of(cls, patterns: Sequence[str]) -> Self:
        """Every kind of the catalogue that a pattern matches; all of them without a pattern.

        Raises:
            ConfigError: A pattern matches nothing.
        """
        known = {kind.name for kind in CATALOG.values()}
        names: set[str] = set()
        for pattern in patterns or ("*",):
            found = {name for name in known if fnmatchcase(name, pattern)}
            if not found:
                entities = ", ".join(sorted({f"{name.partition('.')[0]}.*" for name in known}))
                raise ConfigError(f"no fact is called {pattern!r}. Some that are: {entities}.")
            names |= found
        return cls(frozenset(names))

    @property
    def entity(self) -> str:
        """The one entity that all names share, or ``*``."""
        entities = {name.partition(".")[0] for name in self.names}
        return entities.pop() if len(entities) == 1 else "*"

    @property
    def fact(self) -> str:
        """The one fact, or ``*``."""
        (only, *more) = self.names
        return "*" if more else only.partition(".")[2]
