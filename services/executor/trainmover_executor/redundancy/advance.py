"""What became of a neighbour's small state in a step whose end it did not live to tell.

Schedulers and scalers change after the vote, when nothing is said any more. A follower knows the
owner's small state at the vote, and its own at the vote and now. Ranks run one program, so what
changed here in one way changed there in the same way; where that cannot be said, it is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from trainmover.errors import ProtocolError

__all__ = ["UnpredictableError", "advance", "same"]


class UnpredictableError(ProtocolError):
    """The neighbour's small state went another way than this rank's."""


def advance(theirs: Any, *, before: Any, now: Any, path: str = "") -> Any:
    """The neighbour's value now.

    Args:
        theirs: The neighbour's value then.
        before: This rank's value then.
        now: This rank's value now.
        path: Where in the state, for the error.

    Raises:
        UnpredictableError: This rank's value changed, and the neighbour had another one before.
    """
    if same(before, now):
        return theirs
    if same(theirs, before):
        return now
    if not type(theirs) is type(before) is type(now):
        raise _unpredictable(path)
    if isinstance(theirs, Mapping) and theirs.keys() == before.keys() == now.keys():
        return {
            key: advance(theirs[key], before=before[key], now=now[key], path=f"{path}/{key}")
            for key in theirs
        }
    if isinstance(theirs, list) and len(theirs) == len(before) == len(now):
        return [
            advance(one, before=before[at], now=now[at], path=f"{path}/{at}")
            for at, one in enumerate(theirs)
        ]
    raise _unpredictable(path)


def _unpredictable(path: str) -> UnpredictableError:
    return UnpredictableError(
        f"{path or 'its small state'} changes from step to step and differs from its neighbour's"
    )


def same(one: Any, other: Any) -> bool:
    """Whether two pieces of state are equal in type and value; NaN equals itself."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)
