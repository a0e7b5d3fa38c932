"""Values of the program's variables that can be carried to another process.

Numbers, strings and the like, containers of them, small tensors and arrays, and random generators
of the program's own. What holds its place (a list, a tensor, a generator) is overwritten in place,
so that every name for it sees the change.
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

__all__ = ["CONTAINERS", "equal", "is_plain", "overwrite", "portable", "restored", "size_of"]

PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
CONTAINERS: Final = frozenset(
    {
        list,
        tuple,
        set,
        frozenset,
        dict,
        collections.deque,
        collections.Counter,
        collections.OrderedDict,
        collections.defaultdict,
    }
)
_LIMIT_BYTES: Final = 16 * 1024
_LIMIT_ITEMS: Final = 1024
_TAG: Final = "is"
_SETS: Final = {"set": set, "frozenset": frozenset}


def is_plain(value: Any, *, depth: int = 4) -> bool:
    """Whether ``value`` can be carried as it is."""
    kind = type(value)
    if kind in PLAIN:
        return kind not in {str, bytes} or len(value) <= _LIMIT_BYTES
    if kind in CONTAINERS:
        if depth == 0 or len(value) > _LIMIT_ITEMS:
            return False
        items = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict) and not all(type(key) in PLAIN for key in value):
            return False
        # A generator cannot be made anew, only set: it is looked at as a variable of its own.
        return all(is_plain(each, depth=depth - 1) and not _is_generator(each) for each in items)
    return _is_small_array(value) or _is_generator(value)


def _is_small_array(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return (
            type(value) is torch.Tensor
            and value.layout is torch.strided
            and not (value.is_leaf and value.requires_grad)
            and value.numel() * value.element_size() <= _LIMIT_BYTES
        )
    if isinstance(value, np.ndarray):
        return value.nbytes <= _LIMIT_BYTES and value.dtype.kind in "biufc"
    return isinstance(value, np.generic) and value.dtype.kind in "biufc"


def _is_generator(value: Any) -> bool:
    return isinstance(
        value, torch.Generator | random.Random | np.random.Generator | np.random.RandomState
    )


def size_of(value: Any) -> int:
    """Roughly the bytes that carrying a plain value takes."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray | np.generic):
        return value.nbytes
    if _is_generator(value):
        return 5 * 1024
    if isinstance(value, Mapping):
        return sum(size_of(each) + 16 for each in value.values())
    if type(value) in CONTAINERS:
        return sum(map(size_of, value))
    return len(value) if isinstance(value, str | bytes) else 8


def portable(value: Any) -> Any:
    """A copy of a plain value, as a portable tree (see ``state.codec``)."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.generic):
        return {_TAG: "scalar", "value": np.array(value)}
    if isinstance(value, complex):
        return {_TAG: "complex", "value": [value.real, value.imag]}
    if _is_generator(value):
        return _state_of(value)
    if isinstance(value, dict):
        return {_TAG: "", "items": [[portable(k), portable(v)] for k, v in value.items()]}
    if isinstance(value, collections.deque | list):
        return [portable(each) for each in value]
    if isinstance(value, tuple):
        return tuple(portable(each) for each in value)
    if isinstance(value, set | frozenset):
        return {_TAG: type(value).__name__, "items": [portable(each) for each in value]}
    return value


def _state_of(value: Any) -> dict[str, Any]:
    if isinstance(value, torch.Generator):
        return {_TAG: "torch", "state": value.get_state()}
    if isinstance(value, random.Random):
        version, words, gauss = value.getstate()
        return {_TAG: "python", "state": [version, list(words), gauss]}
    if isinstance(value, np.random.RandomState):
        return {_TAG: "numpy", "state": value.get_state(legacy=False)}
    return {_TAG: "numpy", "state": value.bit_generator.state}


def restored(tree: Any, like: Any) -> Any:
    """The value that ``portable`` described, in ``like`` where that can be overwritten.

    Args:
        tree: What ``portable`` returned, here or elsewhere.
        like: The variable's present value.
    """
    value = _rebuilt(tree)
    if overwrite(like, value):
        return like
    return value


def overwrite(live: Any, value: Any) -> bool:
    """Make ``live`` equal to ``value`` without another object taking its place."""
    if isinstance(value, _Generator):
        return value.put_into(live)
    if isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor):
        fits = live.shape == value.shape and live.dtype == value.dtype
        if fits and not live.requires_grad:
            live.detach().copy_(value)
        return fits and not live.requires_grad
    if isinstance(live, np.ndarray) and isinstance(value, np.ndarray):
        fits = live.shape == value.shape and live.dtype == value.dtype and live.flags.writeable
        if fits:
            live[...] = value
        return fits
    if isinstance(live, dict) and isinstance(value, dict):
        live.clear()
        live.update(value)
        return True
    if isinstance(live, set) and isinstance(value, set):
        live.clear()
        live.update(value)
        return True
    if isinstance(live, list | collections.deque) and isinstance(value, list):
        live.clear()
        live.extend(value)
        return True
    return False


class _Generator:
    """The state of a random generator, to be put into one of its kind."""

    def __init__(self, kind: str, state: Any) -> None:
        self._kind = kind
        self._state = state

    def put_into(self, live: Any) -> bool:
        """Set the state of ``live``; False when it is no such generator."""
        if self._kind == "torch" and isinstance(live, torch.Generator):
            live.set_state(self._state)
        elif self._kind == "python" and isinstance(live, random.Random):
            version, words, gauss = self._state
            live.setstate((version, tuple(words), gauss))
        elif self._kind == "numpy" and isinstance(live, np.random.RandomState):
            live.set_state(self._state)
        elif self._kind == "numpy" and isinstance(live, np.random.Generator):
            live.bit_generator.state = self._state
        else:
            return False
        return True


def _rebuilt(tree: Any) -> Any:
    if isinstance(tree, dict):
        kind = tree[_TAG]
        if kind == "":
            return {_rebuilt(key): _rebuilt(value) for key, value in tree["items"]}
        if kind in {"set", "frozenset"}:
            return _SETS[kind](_rebuilt(each) for each in tree["items"])
        if kind == "scalar":
            return tree["value"][()]
        if kind == "complex":
            return complex(*tree["value"])
        return _Generator(kind, tree["state"])
    if isinstance(tree, list):
        return [_rebuilt(each) for each in tree]
    if isinstance(tree, tuple):
        return tuple(_rebuilt(each) for each in tree)
    return tree


def equal(one: Any, other: Any) -> bool:
    """Whether two portable trees are the same, bit for bit; NaN equals itself."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return (
            isinstance(one, torch.Tensor)
            and isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124
        )
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return (
            isinstance(one, np.ndarray)
            and isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)
