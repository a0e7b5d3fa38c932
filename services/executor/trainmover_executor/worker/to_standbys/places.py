"""Where the active rank is, known to the standbys of the same rank, so that they can follow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Places"]

_Numbered = tuple[int, Any]


class Places:
    """What an active rank shows and a standby sees; every method may be called from any thread.

    Places are portable trees. Only the newest counts: a standby may see few of many.

    Attributes:
        listeners: Standbys that listen now; while there are none, nothing needs to be shown.
    """

    def __init__(self) -> None:
        self.listeners = 0
        self._shown: _Numbered = (0, None)
        self._seen: _Numbered = (0, None)
        self._taken = 0
        self._news: Callable[[], None] = _nobody
        self._on_show: Callable[[], None] = _nobody

    # -- at an active rank -----------------------------------------------------------------------

    def show(self, tree: Any) -> None:
        """Show where this rank is now; takes no time: another thread packs and sends it.

        Args:
            tree: A portable tree, which must not change any more.
        """
        self._shown = (self._shown[0] + 1, tree)
        self._on_show()

    def on_show(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called by the thread that shows a place."""
        self._on_show = listener

    @property
    def shown(self) -> tuple[int, Any]:
        """How many were shown, and the newest."""
        return self._shown

    # -- at a standby ----------------------------------------------------------------------------

    def seen(self) -> Any | None:
        """The newest place of the active rank; None before the first."""
        self._taken, tree = self._seen
        return tree

    @property
    def fresh(self) -> bool:
        """Whether a place has come since ``seen`` was called."""
        return self._seen[0] != self._taken

    def see(self, tree: Any) -> None:
        """The active rank has shown ``tree``."""
        self._seen = (self._seen[0] + 1, tree)
        self._news()

    def on_news(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called when a place has come."""
        self._news = listener


def _nobody() -> None:
    """Nobody listens yet."""
