"""What a shadow leaves out is said in its log, once for each kind."""

from __future__ import annotations

from typing import Final

__all__ = ["SaidOnce"]

_WHY: Final = "this process is a shadow, a standby that warms up, until it takes a slot."


class SaidOnce:
    """Says the first thing that was left out.

    Args:
        rest: What else is left out, behind the name of the first.
    """

    def __init__(self, rest: str) -> None:
        self._rest = rest
        self._said = False

    def __call__(self, what: str) -> None:
        """Say that ``what`` was left out, if nothing was said yet."""
        if not self._said:
            self._said = True
            print(f"{what} {self._rest}: {_WHY}", flush=True)  # noqa: T201 - into the shadow log
