"""Values of the program's variables that can be carried to another process.

Numbers, strings and the like, containers of them, small tensors and arrays, and random generators
of the program's own. What holds its place (a list, a tensor, a generator) is overwritten in place,
so that every name for it sees the change.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Mapping
from functools import singledispatch
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
    kinds = torch.Generator | random.Random | np.random.Generator | np.random.RandomState
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


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


# -- to a portable tree --------------------------------------------------------------------------


@singledispatch
def portable(value: Any) -> Any:
    """A copy of a plain value, as a portable tree (see ``state.codec``)."""
    return value


@portable.register
def _(value: torch.Tensor) -> Any:
    return value.detach().clone()


@portable.register
def _(value: np.ndarray) -> Any:
    return value.copy()


@portable.register
def _(value: np.generic) -> Any:
    return {_TAG: "scalar", "value": np.array(value)}


@portable.register
def _(value: complex) -> Any:
    return {_TAG: "complex", "value": [value.real, value.imag]}


@portable.register(dict)
def _(value: dict[Any, Any]) -> Any:
    return {_TAG: "dict", "items": [[portable(k), portable(v)] for k, v in value.items()]}


@portable.register(list)
@portable.register(collections.deque)
def _(value: Any) -> Any:
    return [portable(each) for each in value]


@portable.register(tuple)
def _(value: tuple[Any, ...]) -> Any:
    return tuple(portable(each) for each in value)


@portable.register(set)
@portable.register(frozenset)
def _(value: Any) -> Any:
    return {_TAG: type(value).__name__, "items": [portable(each) for each in value]}


@portable.register
def _(value: torch.Generator) -> Any:
    return {_TAG: "torch", "state": value.get_state()}


@portable.register
def _(value: random.Random) -> Any:
    version, words, gauss = value.getstate()
    return {_TAG: "python", "state": [version, list(words), gauss]}


@portable.register
def _(value: np.random.RandomState) -> Any:
    return {_TAG: "numpy", "state": value.get_state(legacy=False)}


@portable.register
def _(value: np.random.Generator) -> Any:
    return {_TAG: "numpy", "state": value.bit_generator.state}


# -- and back ------------------------------------------------------------------------------------


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
    for kinds, of, write in _OVERWRITES:
        if isinstance(live, kinds) and isinstance(value, of):
            return write(live, value)
    return False


def _write_tensor(live: torch.Tensor, value: torch.Tensor) -> bool:
    fits = live.shape == value.shape and live.dtype == value.dtype and not live.requires_grad
    if fits:
        live.detach().copy_(value)
    return fits


def _write_array(live: Any, value: Any) -> bool:
    fits = live.shape == value.shape and live.dtype == value.dtype and live.flags.writeable
    if fits:
        live[...] = value
    return bool(fits)


def _write_unordered(live: Any, value: Any) -> bool:
    live.clear()
    live.update(value)
    return True


def _write_sequence(live: Any, value: Any) -> bool:
    live.clear()
    live.extend(value)
    return True


_OVERWRITES: Final[tuple[tuple[Any, Any, Callable[[Any, Any], bool]], ...]] = (
    (torch.Tensor, torch.Tensor, _write_tensor),
    (np.ndarray, np.ndarray, _write_array),
    (dict, dict, _write_unordered),
    (set, set, _write_unordered),
    ((list, collections.deque), list, _write_sequence),
)
"""(What is overwritten, with what, how)."""


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
        make = _MAKERS.get(tree[_TAG])
        return make(tree) if make is not None else _Generator(tree[_TAG], tree["state"])
    if isinstance(tree, list):
        return [_rebuilt(each) for each in tree]
    if isinstance(tree, tuple):
        return tuple(_rebuilt(each) for each in tree)
    return tree


_MAKERS: Final[Mapping[str, Callable[[dict[str, Any]], Any]]] = {
    "dict": lambda tree: {_rebuilt(key): _rebuilt(value) for key, value in tree["items"]},
    "set": lambda tree: {_rebuilt(each) for each in tree["items"]},
    "frozenset": lambda tree: frozenset(_rebuilt(each) for each in tree["items"]),
    "scalar": lambda tree: tree["value"][()],
    "complex": lambda tree: complex(*tree["value"]),
}


# -- comparison ----------------------------------------------------------------------------------


def equal(one: Any, other: Any) -> bool:
    """Whether two portable trees are the same, bit for bit; NaN equals itself."""
    if type(one) is not type(other):
        return False
    compare = _COMPARISONS.get(type(one))
    return bool(one == other) if compare is None else compare(one, other)


def _equal_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return same_kind and torch.equal(_bits_of(one), _bits_of(other))


def _bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _equal_arrays(one: Any, other: Any) -> bool:
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return bool(same_kind and one.tobytes() == other.tobytes())


def _equal_items(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(equal, one, other))


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
}
