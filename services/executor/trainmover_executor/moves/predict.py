"""What became of a dead rank's variables between its last vote and where the job stands now.

Code behind the vote changes them: it counts steps, and averages losses. Ranks run one program, so a
variable that was the same at the rank that gives the state is what that rank has now. One that
differs from rank to rank is known by running that code only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.large import LARGE
from trainmover_executor.program.values.trees import TAG

__all__ = ["alike", "is_computed", "predicted"]

_LOOKED_AT: Final = 64


def predicted(
    theirs: Mapping[str, Any], *, then: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The dead rank's variables where the job stands.

    Args:
        theirs: At its last vote.
        then: Another rank's at that vote.
        now: That rank's now.

    Returns:
        Those that are certain, and the paths of those that are not. A variable that differs and did
        not change at the other rank is in neither: it may have changed at this one, behind a
        condition on what is its own.
    """
    certain: dict[str, Any] = {}
    unknown = []
    for path, value in now.items():
        known = path in theirs and path in then
        if (known and equal(theirs[path], then[path])) or not (path in theirs or path in then):
            certain[path] = value
        elif not (known and equal(then[path], value)):
            unknown.append(path)
    return certain, unknown


def alike(
    theirs: Iterable[Sequence[Any]],
    *,
    then: Iterable[Sequence[Any]],
    now: Iterable[Sequence[Any]],
) -> dict[int, torch.Tensor]:
    """The dead rank's buffers that are certain where the job stands, by index.

    Args:
        theirs: (index, buffer) of those that training changes, at its last vote.
        then: Another rank's at that vote.
        now: That rank's now.
    """
    before: dict[int, torch.Tensor] = dict(map(tuple, then))
    after: dict[int, torch.Tensor] = dict(map(tuple, now))
    return {
        index: after[index]
        for index, value in theirs
        if index in before and index in after and torch.equal(value, before[index])
    }


def is_computed(tree: Any) -> bool:
    """Whether ranks that hold ``tree`` alike have computed it alike.

    Zeros, counts and flags are what ranks begin with and set themselves back to. A number with a
    fraction is alike at two ranks only where what it comes from is: reduced gradients, a mean.
    """
    if isinstance(tree, float):
        return math.isfinite(tree) and not tree.is_integer()
    if isinstance(tree, torch.Tensor):
        return tree.is_floating_point() and any(
            map(is_computed, tree.reshape(-1)[:_LOOKED_AT].tolist())
        )
    if isinstance(tree, np.ndarray):
        few = tree.reshape(-1)[:_LOOKED_AT].tolist()
        return tree.dtype.kind == "f" and any(map(is_computed, few))
    if isinstance(tree, Mapping):
        if tree.get(TAG) == LARGE:  # what it was at the vote came only if it still is that
            return True
        return any(map(is_computed, tree.values()))
    return isinstance(tree, list | tuple) and any(map(is_computed, tree))
