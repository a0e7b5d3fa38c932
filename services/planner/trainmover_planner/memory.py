"""Keeps the interpreter from looking through everything the planner knows, again and again.

What is known of a large job is millions of objects that live as long as the job. The collector of
reference cycles would visit all of them whenever enough new ones were made, in the midst of a
recovery as likely as not.
"""

from __future__ import annotations

import gc

__all__ = ["Attic"]


class Attic:
    """Puts what has grown out of the collector's sight."""

    def __init__(self) -> None:
        self._size = 0

    def settle(self, size: int) -> None:
        """Call it after a change, with how much is known; it acts when that doubled.

        Args:
            size: Number of machines and ranks that something is known of.
        """
        if size >= max(2 * self._size, 1024):
            self._size = size
            gc.collect()
            gc.freeze()
