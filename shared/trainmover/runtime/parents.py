"""A process that is not to outlive the one that began it."""

from __future__ import annotations

import ctypes
import os
from typing import Final

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, signum: int) -> None:
    """Have the kernel send ``signum`` to this process when ``parent`` ends.

    Args:
        parent: Process id that is expected to be the parent; when it is gone already, this
            process ends at once.
        signum: The signal.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
