"""Batches that can be had by number: a list, a tuple, anything with a length and items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch.utils.data import IterableDataset

from trainmover_executor.feed import owned
from trainmover_executor.feed.sources.owning import Owning
from trainmover_executor.feed.sources.source import How

__all__ = ["SequenceSource", "is_sequence"]

_BY_NUMBER: Final = frozenset(
    {"builtins", "array", "collections", "_collections_abc", "numpy", "torch", "datasets"}
)
"""Packages whose classes iterate over their items in the order of their numbers."""


def is_sequence(loader: Any) -> bool:
    """Whether batches can be had from ``loader`` by number.

    An iterable data set of torch inherits ``__getitem__`` from one that is none, and raises in it.
    """
    numbered = hasattr(loader, "__getitem__") and hasattr(loader, "__len__")
    if not numbered or isinstance(loader, Mapping | IterableDataset):
        return False
    return not _goes_its_own_way(type(loader))


def _goes_its_own_way(kind: type[Any]) -> bool:
    """Whether a class says how to iterate, and may shuffle in front of each pass."""
    by = next((each for each in kind.__mro__ if "__iter__" in vars(each)), None)
    return by is not None and by.__module__.partition(".")[0] not in _BY_NUMBER


class SequenceSource(Owning):
    """Reads by number.

    Args:
        batches: With ``__getitem__`` and ``__len__``.
    """

    how: How = "index"
    follows = False
    prepares = True
    drops = 0.0
    loads_ahead = False
    unloaded = 0

    def __init__(self, batches: Any) -> None:
        super().__init__()
        self._batches = batches
        self._at = 0

    def lead(self, at: int) -> int:
        """See ``Source``."""
        del at
        return 0

    def begin(self) -> None:
        """See ``Source``."""
        self.begin_at(0)

    def begin_at(self, batches: int) -> None:
        """See ``Source``."""
        self._owned = self._find()
        self._at = batches

    def pass_over(self) -> None:
        """See ``Source``."""

    def draw(self) -> Any:
        """See ``Source``."""
        if self._at >= len(self._batches):
            raise StopIteration
        batch = self._batches[self._at]
        self._at += 1
        return batch

    def drop(self, left: int) -> None:
        """See ``Source``."""
        del left
        self.draw()

    def mark(self) -> dict[str, Any]:
        """See ``Source``."""
        return {"id": 0, "now": owned.capture(self._owned)}

    def goes_on(self, mark: dict[str, Any]) -> bool:
        """See ``Source``."""
        return bool(self.mark()["id"] == mark["id"])

    def rest_mark(self) -> dict[str, Any]:
        """See ``Source``."""
        return {"now": owned.capture(self._find())}

    def rest(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        self.arrive(mark)

    def end(self) -> None:
        """See ``Source``."""

    def rewind(self) -> None:
        """See ``Source``."""

    def prepare(self, mark: dict[str, Any], at: int, *, until: float) -> bool:
        """See ``Source``."""
        del mark, at, until
        return True

    def resume(self, mark: dict[str, Any], at: int) -> int:
        """See ``Source``."""
        del mark
        self.begin_at(at)
        return at

    def arrive(self, mark: dict[str, Any]) -> None:
        """See ``Source``."""
        owned.restore(self._find(), mark["now"])

    def _find(self) -> dict[str, Any]:
        return owned.find({"loader": self._batches})

    def recount(self, mark: dict[str, Any]) -> None:
        """See ``Source``: its passes are all the same."""
