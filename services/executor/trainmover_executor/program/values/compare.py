"""Comparison of portable trees, bit for bit."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch

from trainmover_executor.program.values.large import Large
from trainmover_executor.state.packing.memory import bits_of

__all__ = ["differing", "equal"]


def equal(one: Any, other: Any) -> bool:
    """Whether two portable trees are the same, bit for bit; NaN equals itself."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    compare = _COMPARISONS.get(type(one))
    return bool(one == other) if compare is None else compare(one, other)


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The portable trees of ``before`` that are others ``now``, or are gone."""
    return {
        path: tree for path, tree in before.items() if path not in now or not equal(tree, now[path])
    }


def _equal_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    if same_kind and one.device != other.device:  # one of them has come from another rank
        one, other = one.cpu(), other.cpu()
    return same_kind and torch.equal(bits_of(one), bits_of(other))


def _equal_arrays(one: Any, other: Any) -> bool:
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return bool(same_kind and one.tobytes() == other.tobytes())


def _equal_items(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    return all(map(operator.is_, one, other)) or all(map(equal, one, other))


def _equal_entries(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)


def _equal_floats(one: float, other: float) -> bool:
    return repr(one) == repr(other)  # -0.0 is not 0.0, NaN is NaN


_COMPARISONS: Final[Mapping[type, Callable[[Any, Any], bool]]] = {
    torch.Tensor: _equal_tensors,
    np.ndarray: _equal_arrays,
    list: _equal_items,
    tuple: _equal_items,
    dict: _equal_entries,
    float: _equal_floats,
    Large: Large.is_same,
}
