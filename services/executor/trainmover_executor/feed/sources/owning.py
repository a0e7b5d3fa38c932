"""What all sources do about generator objects that their loader has."""

from __future__ import annotations

from typing import Any

from trainmover_executor.feed import owned

__all__ = ["Owning"]


class Owning:
    """A source whose loader may have generator objects, and passes over other loaders."""

    def __init__(self) -> None:
        self._owned: dict[str, Any] = {}
        """As they were found when the pass began."""

    def _find(self) -> dict[str, Any]:
        """All of them now, by path."""
        raise NotImplementedError

    def beside(self) -> dict[str, Any]:
        """See ``Source``."""
        return {"owned": owned.capture(self._generators())}

    def put_beside(self, state: dict[str, Any]) -> None:
        """See ``Source``."""
        owned.restore(self._generators(), state["owned"])

    def _generators(self) -> dict[str, Any]:
        return owned.generators(self._owned or self._find())
