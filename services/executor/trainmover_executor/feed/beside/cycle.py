"""Pass after pass over one more loader: ``session.cycle``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainmover_executor.feed.beside.drawer import Drawer
from trainmover_executor.feed.feed import ENDLESS, Feed

__all__ = ["Cycle"]


class Cycle(Drawer):
    """Batches of a loader, pass after pass; what ``session.cycle`` returns.

    Args:
        loader: Any iterable of batches.
        replay: See ``Feed``.
    """

    def __init__(self, loader: Iterable[Any], *, replay: int = 0) -> None:
        super().__init__(Feed(loader, epochs=ENDLESS, replay=replay))
