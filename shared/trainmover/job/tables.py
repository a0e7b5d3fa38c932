"""Immutable maps for cores with many entries: a change costs the same whatever their number.

Cores are functions of their state, so a map in a state must never change under its holder. Copying
it for each fact costs as much as the job is large. A ``Table`` keeps one dictionary for all of its
versions instead: the newest version holds it, each older one knows only what differs in the next.
Reading an older version moves the dictionary back to it, so all versions stay valid, and the one
that was used last is as fast as a dictionary (Baker, "Shallow binding makes functional arrays
fast", 1991). Nothing is kept for versions that nobody holds any more.

One thread only: reading moves the dictionary.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

# ruff: noqa: SLF001 - the versions of a table are one thing

__all__ = ["Table"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_ABSENT: Final[Any] = object()


class Table(Mapping[K, V], Generic[K, V]):
    """A mapping that is never changed: ``put`` and ``drop`` return another one.

    The order of the entries is not kept. Iterating goes over what was there when it began.

    Args:
        entries: What is in it.
    """

    __slots__ = ("_entries", "_key", "_newer", "_value")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._hold(dict(entries))

    @classmethod
    def of(cls, keys: Iterable[K]) -> Table[K, None]:
        """A table that is used as a set."""
        return Table(dict.fromkeys(keys))

    def put(self, key: K, value: V) -> Table[K, V]:
        """With this entry; the table itself where nothing changes."""
        entries = self._dictionary()
        before = entries.get(key, _ABSENT)
        if before is value:  # equality might cost as much as the job is large
            return self
        entries[key] = value
        return self._followed_by(entries, key, before)

    def drop(self, key: K) -> Table[K, V]:
        """Without this entry; the table itself where there is none."""
        entries = self._dictionary()
        if key not in entries:
            return self
        return self._followed_by(entries, key, entries.pop(key))

    def _followed_by(self, entries: dict[K, V], key: K, before: V) -> Table[K, V]:
        newer: Table[K, V] = Table.__new__(Table)
        newer._hold(entries)
        self._differ(newer, key, before)
        return newer

    def _hold(self, entries: dict[K, V]) -> None:
        self._entries: dict[K, V] | None = entries
        self._newer: Table[K, V] | None = None
        self._key: K = _ABSENT
        self._value: V = _ABSENT

    def _differ(self, newer: Table[K, V], key: K, value: V) -> None:
        """Be as ``newer`` but for one entry."""
        self._entries, self._newer, self._key, self._value = None, newer, key, value

    def _dictionary(self) -> dict[K, V]:
        entries = self._entries
        return self._take_back() if entries is None else entries

    def _take_back(self) -> dict[K, V]:
        """Move the dictionary here from the version that was used last."""
        path: list[Table[K, V]] = []
        holder: Table[K, V] = self
        while holder._entries is None:
            path.append(holder)
            assert holder._newer is not None  # noqa: S101 - either it, or the dictionary
            holder = holder._newer
        entries = holder._entries
        for older in reversed(path):
            key, value = older._key, older._value
            before = entries.get(key, _ABSENT)
            if value is _ABSENT:
                del entries[key]
            else:
                entries[key] = value
            holder._differ(older, key, before)
            older._hold(entries)
            holder = older
        return entries

    def __getitem__(self, key: K) -> V:
        return self._dictionary()[key]

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        return self._dictionary().get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._dictionary()

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._dictionary()))

    def __len__(self) -> int:
        return len(self._dictionary())

    def items(self) -> Any:
        """All entries, as they are now."""
        return list(self._dictionary().items())

    def values(self) -> Any:
        """All values, as they are now."""
        return list(self._dictionary().values())

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Table):
            return NotImplemented
        # A copy: the dictionary may be the same one, and moves.
        return dict(self._dictionary()) == other._dictionary()

    def __hash__(self) -> int:
        raise TypeError("a Table has no hash")

    def __repr__(self) -> str:
        return f"Table({self._dictionary()!r})"
