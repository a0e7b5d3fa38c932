"""A joiner goes to where the leaver is in the data, while the leaver trains on."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

__all__ = ["Data", "catch_up", "keep_up"]

_CLOSE: Final = 4
"""Steps of the leaver whose batches are loaded while it trains on, without slowing it."""
_BUDGET_S: Final = 0.05

Seen = Callable[[], Mapping[str, Any] | None]
"""Where the leaver has shown itself last, as the tree of a ``Moment``."""


class Data(Protocol):
    """The data of the program's open calls of ``session.steps``.

    Positions are those of the leaver, one for each call, the outermost first.
    """

    def approach(self, feeds: Sequence[dict[str, Any] | None]) -> bool:
        """Get nearer to where the job is; whether there is nothing left to do."""

    def preload(
        self, feeds: Sequence[dict[str, Any] | None], *, budget_s: float = math.inf
    ) -> bool:
        """Have loaded what follows there; whether nothing is left to do after so many seconds."""

    def compare(self, seen: Mapping[str, Any]) -> None:
        """Look whether the rank was given, where it was ``seen``, what would be drawn here."""

    def stop_comparing(self) -> None:
        """A plan needs this standby."""


def catch_up(data: Data, told: Mapping[str, Any], seen: Seen, *, go_on: Callable[[], None]) -> None:
    """Load what the leaver will need next, before it waits for this joiner.

    Where places in the data are found by drawing, the leaver takes many steps meanwhile. This ends
    close behind it, or where it comes no nearer.

    Args:
        data: This joiner's.
        told: Where the leaver was when the move began.
        seen: Where it is.
        go_on: Called again and again; raises when nobody needs this joiner any more.
    """
    _load(data, told["feeds"], go_on=go_on)
    at, behind = told["place"]["committed"], sys.maxsize
    while (ahead := _ahead(told, seen())) is not None:
        steps = ahead["place"]["committed"] - at
        if steps <= _CLOSE or steps >= behind:
            return
        at, behind = ahead["place"]["committed"], steps
        _load(data, ahead["position"]["feeds"], go_on=go_on)


def keep_up(data: Data, told: Mapping[str, Any], seen: Seen) -> None:
    """The same between two messages of the leaver, which waits for what it sends: a little."""
    ahead = _ahead(told, seen())
    if ahead is not None:
        data.preload(ahead["position"]["feeds"], budget_s=_BUDGET_S)


def _load(data: Data, feeds: Sequence[dict[str, Any] | None], *, go_on: Callable[[], None]) -> None:
    go_on()
    while not data.preload(feeds, budget_s=_BUDGET_S):
        go_on()


def _ahead(told: Mapping[str, Any], seen: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Where the leaver has shown itself, if that is ahead in the same calls."""
    place = told["place"]
    if seen is None or seen["place"]["committed"] <= place["committed"]:
        return None
    calls = [ordinal for ordinal, _ in place["open"]]
    return seen if [ordinal for ordinal, _ in seen["place"]["open"]] == calls else None
