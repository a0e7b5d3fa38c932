"""Looking at what threads of the program may change at the same time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["look_again"]

Found = TypeVar("Found")

_LOOKS: Final = 20
_BY_ANOTHER_THREAD: Final = re.compile("(changed|mutated).* during iteration")
"""What Python says of a dictionary, a set or a deque."""


def look_again(look: Callable[[], Found]) -> Found:
    """What ``look`` returns; again where a thread changed a container while it looked.

    Raises:
        RuntimeError: That happens each time.
    """
    for left in reversed(range(_LOOKS)):
        try:
            return look()
        except RuntimeError as error:
            if not left or not _BY_ANOTHER_THREAD.search(str(error)):
                raise
    raise AssertionError  # the last look returns or raises
