"""Which object of the program a name stands for, told so that another process finds its own.

``best = current``, a list of tasks that is shuffled, one from which tasks are taken: no attribute
changes, and yet another object is meant. What a process has when it is looked at first, each
process of the job has, by the same names: such an object is known by the first of its names for
good, whatever other names it gets. What the program makes later is known by a number besides.
"""

from __future__ import annotations

import collections
import weakref
from typing import Any, Final

__all__ = ["Identities"]

_LATER: Final = "#"


class Identities:
    """Names of the objects that one process has seen.

    Those of the first look are held until ``let_go``: the shadow iterations of a standby may drop
    one that the job has not dropped.
    """

    def __init__(self) -> None:
        self._held: list[Any] | None = []
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._first: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._later: collections.Counter[str] = collections.Counter()
        self._is_first_look = True

    def end_first_look(self) -> None:
        """Objects that are seen from now on are this process's own."""
        self._is_first_look = False

    def let_go(self) -> None:
        """This process takes part in training: what its program drops is gone."""
        self._held = None

    def name_of(self, value: Any, path: str) -> str:
        """The name by which ``value`` is known; empty if it cannot be.

        Args:
            value: An object.
            path: By which it was found now.
        """
        known = self._names.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        try:
            reference = weakref.ref(value, self._forget(id(value)))
        except TypeError:
            return ""
        name = path
        if self._is_first_look:
            self._first[name] = value
            if self._held is not None:
                self._held.append(value)
        else:
            self._later[path] += 1
            name = f"{path}{_LATER}{self._later[path]}"
        self._names[id(value)] = reference, name
        return name

    def _forget(self, number: int) -> Any:
        def forget(reference: weakref.ref[Any]) -> None:
            if self._names.get(number, (None,))[0] is reference:
                del self._names[number]

        return forget

    def of(self, name: str) -> Any | None:
        """The object of the first look that is known by ``name``, if it is still there."""
        return self._first.get(name)

    def path_inside(self, value: Any, path: str) -> str:
        """How the paths begin of what ``value`` holds, found by ``path``: the same by any name."""
        name = self.name_of(value, path)
        if name and not self.is_later(name):
            return name
        first = self._first.get(path)
        return path if first is None or first is value else f"{path}{_LATER}"

    @staticmethod
    def is_later(name: str) -> bool:
        """Whether an object was made behind the first look, by its name."""
        return _LATER in name

    @staticmethod
    def is_first_at(name: str, path: str) -> bool:
        """Whether an object is the first that was seen at ``path``, by its name."""
        return name == f"{path}{_LATER}1"
