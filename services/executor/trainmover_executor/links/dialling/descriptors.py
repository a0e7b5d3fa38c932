"""How many files this process may have open, and how many of them are for callers unknown."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

__all__ = ["raise_limit", "room_for_strangers"]

_ENOUGH: Final = 65_536
"""Programs that walk over all descriptors they might have must not walk for minutes."""

_MOST_STRANGERS: Final = 1024
_SHARE: Final = 4


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, where that is more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def room_for_strangers() -> int:
    """How many callers may be connected at once that have not proved anything yet."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_STRANGERS
    return max(1, min(_MOST_STRANGERS, soft // _SHARE))
