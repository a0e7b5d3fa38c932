"""Attributes as portable trees: long lists as an order, what is too large as a print."""

from __future__ import annotations

import operator
import zlib
from typing import Any, Final, TypeGuard

import numpy as np
import torch

from trainmover.errors import ConfigError
from trainmover_executor.program.values.plain import is_plain, is_tensor_of_program
from trainmover_executor.program.values.trees import portable

__all__ = [
    "LONG",
    "MOST_BYTES",
    "ORDER",
    "PRINT",
    "can_be_told",
    "has",
    "is_long",
    "ordered",
    "print_of",
    "size_of",
    "tree_of",
    "tree_of_list",
]

MOST_BYTES: Final = 1024 * 1024
"""It goes to other machines with each vote."""
ORDER: Final = "order"
"""A long list that holds what it held at first: where each item stood."""
LONG: Final = "numbers"
"""A long list of numbers, as an array."""
PRINT: Final = "print"
"""A print of what is too large."""
_MOST_PRINTED_BYTES: Final = 64 * 1024 * 1024
_SAMPLES: Final = 4096
"""Elements that are looked at of what is larger: data that a loader holds."""
_NUMBERS: Final = (bool, int, float)
_ITEM_BYTES: Final = 4
"""What the place of an item of a long list takes."""


def can_be_told(value: Any) -> bool:
    """Whether an attribute is looked at."""
    return is_plain(value) or _is_array(value) or is_long(value)


def is_long(value: Any) -> bool:
    """Whether ``value`` is a list of many items, or of others than plain ones."""
    return type(value) is list and not is_plain(value) and bool(value)


def _is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc" and not isinstance(value, np.memmap)
    return isinstance(value, torch.Tensor) and is_tensor_of_program(value)


def tree_of(value: Any) -> Any:
    """``value``, no long list, as a portable tree; a print of what is too large to be told."""
    if getattr(value, "nbytes", 0) <= MOST_BYTES:
        return portable(value)
    array = value.detach().numpy() if isinstance(value, torch.Tensor) else value
    if array.nbytes > _MOST_PRINTED_BYTES:
        array = array.reshape(-1)[:: array.size // _SAMPLES]
    return {PRINT: zlib.crc32(np.ascontiguousarray(array).tobytes())}


def tree_of_list(value: list[Any], first: list[Any] | None) -> Any:
    """A long list as a portable tree.

    Args:
        value: The list.
        first: What was in it at first, if it is known.

    Returns:
        None where it is as it was at first, or cannot be told.
    """
    if first is not None and len(first) == len(value) and all(map(operator.is_, first, value)):
        return None
    too_long = _ITEM_BYTES * len(value) > MOST_BYTES
    order = None if too_long or first is None else _order_of(value, first)
    if order is not None:
        return {ORDER: order}
    numbers = None if too_long else _numbers_of(value)
    if numbers is not None:
        return {LONG: numbers}
    few = [each for each in value[:: max(1, len(value) // _SAMPLES)] if is_plain(each)]
    return {PRINT: zlib.crc32(repr(few).encode())} if few else None


def _order_of(value: list[Any], first: list[Any]) -> np.ndarray[Any, Any] | None:
    """Where in ``first`` each item of ``value`` was; None if one is another object."""
    known = np.fromiter(map(id, first), dtype=np.int64, count=len(first))
    wanted = np.fromiter(map(id, value), dtype=np.int64, count=len(value))
    by_id = np.argsort(known)
    at = np.searchsorted(known, wanted, sorter=by_id)
    order = by_id[np.minimum(at, len(first) - 1)]
    return order.astype(np.int32) if np.array_equal(known[order], wanted) else None


def ordered(path: str, first: list[Any], order: np.ndarray[Any, Any]) -> list[Any]:
    """The items of ``first`` in an ``order`` that was told.

    Raises:
        ConfigError: There are not so many.
    """
    if order.size and int(order.max()) >= len(first):
        raise ConfigError(
            f"the loader's {path} held other items here at first than at the job's ranks, so the "
            "order of a pass cannot be taken over. Fill it before the first session.steps(...)."
        )
    return [first[at] for at in order.tolist()]


def _numbers_of(value: list[Any]) -> np.ndarray[Any, Any] | None:
    kinds = set(map(type, value))
    if len(kinds) != 1 or not kinds <= set(_NUMBERS):
        return None
    try:
        return np.array(
            value, dtype={int: np.int64, float: np.float64, bool: np.bool_}[kinds.pop()]
        )
    except OverflowError:
        return None


def has(tree: Any, key: str) -> TypeGuard[dict[str, Any]]:
    """Whether ``tree`` is an ``ORDER``, say."""
    return isinstance(tree, dict) and tree.keys() == {key}


def size_of(tree: Any, value: Any) -> int:
    """Bytes that telling ``value`` by its ``tree`` takes, as far as it can be large."""
    if has(tree, ORDER) or has(tree, LONG):
        return sum(each.nbytes for each in tree.values())
    if type(value) is list and has(tree, PRINT):
        return _ITEM_BYTES * len(value)
    return int(getattr(value, "nbytes", 0))


def print_of(tree: Any) -> Any:
    """Of a tree, so that two can be compared where one is too large to be told."""
    if has(tree, PRINT):
        return tree[PRINT]
    if has(tree, ORDER) or has(tree, LONG):
        (array,) = tree.values()
        return zlib.crc32(array.tobytes())
    return zlib.crc32(repr(tree).encode())
