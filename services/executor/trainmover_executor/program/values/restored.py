"""Values from portable trees, in the objects that are there.

What holds its place (a list, a tensor, a generator) is overwritten in place, so that every name for
it sees the change. What was one object in two places is one object here, too.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch

from trainmover_executor.program.values.kinds.components import key_of
from trainmover_executor.program.values.kinds.derived import (
    attributes_of,
    base_of,
    content_of,
    empty_of,
    fill,
)
from trainmover_executor.program.values.kinds.named import of_name, rebuilt
from trainmover_executor.program.values.kinds.records import records_from
from trainmover_executor.program.values.large import LARGE, Large
from trainmover_executor.program.values.passing import SHAPE, tensor_of
from trainmover_executor.program.values.plain import BUILTINS, Positioned
from trainmover_executor.program.values.trees import ON_DEVICE, RECORDS, TAG

__all__ = ["overwrite", "reserve", "restored"]


def restored(tree: Any, like: Any, shared: dict[str, Any] | None = None) -> Any:
    """The value that ``portable`` described, in ``like`` where that can be overwritten.

    Args:
        tree: What ``portable`` returned, here or elsewhere.
        like: The variable's present value.
        shared: What stands here for values that are held in several places, by their names; those
            that are not in it are added. Also the tensors that are large, by their prints.

    Raises:
        ProtocolError: A tensor was changed in place, and no copy of it was kept.
    """
    shared = {} if shared is None else shared
    reserve(tree, like, shared)
    is_records = isinstance(tree, dict) and tree[TAG] == RECORDS
    value = _records(tree, like) if is_records else _rebuilt(tree, shared)
    if value is like:
        return like
    is_shared = isinstance(tree, dict) and tree[TAG] == "shared"
    if not is_shared and overwrite(like, value):
        return like
    return like if isinstance(value, _Generator) else value  # one cannot be made, only set


def overwrite(live: Any, value: Any) -> bool:
    """Make ``live`` equal to ``value`` without another object taking its place."""
    if isinstance(value, _Generator):
        return value.put_into(live)
    if base_of(type(value)) is not None and type(live) is not type(value):
        return False
    for kinds, of, write in _OVERWRITES:
        if isinstance(live, kinds) and isinstance(value, of):
            return write(live, value)
    return False


def _write_tensor(live: torch.Tensor, value: torch.Tensor) -> bool:
    alike = (live.shape, live.dtype) == (value.shape, value.dtype)
    if not alike or live.device.type != value.device.type or not _can_be_written(live):
        return False
    if live.requires_grad:  # what a CUDA graph writes to at each replay, say
        live.detach_()
    live.detach().copy_(value)
    return True


def _can_be_written(live: torch.Tensor) -> bool:
    """Whether it is no parameter, can lose its history, and has memory for each element."""
    has_history = live.requires_grad and not live.is_leaf and live._base is None  # noqa: SLF001
    is_repeated = any(
        size > 1 and not step for size, step in zip(live.shape, live.stride(), strict=True)
    )
    return (has_history or not live.requires_grad) and not is_repeated


def _write_array(live: Any, value: Any) -> bool:
    fits = live.shape == value.shape and live.dtype == value.dtype and live.flags.writeable
    if fits:
        live[...] = value
    return bool(fits)


def _write_container(live: Any, value: Any) -> bool:
    if value is live:
        return True
    is_derived = base_of(type(value)) is not None
    fill(live, content_of(value) if is_derived else value)
    if is_derived and (attributes := attributes_of(value)) != attributes_of(live):
        _set_attributes(live, attributes)
    return True


def _set_attributes(live: Any, attributes: dict[str, Any]) -> None:
    for name in attributes_of(live).keys() - attributes.keys():
        object.__delattr__(live, name)
    for name, each in attributes.items():
        object.__setattr__(live, name, each)


_OVERWRITES: Final[tuple[tuple[Any, Any, Callable[[Any, Any], bool]], ...]] = (
    (torch.Tensor, torch.Tensor, _write_tensor),
    (np.ndarray, np.ndarray, _write_array),
    (dict, dict, _write_container),
    (set, set, _write_container),
    ((list, collections.deque), (list, collections.deque), _write_container),
)
"""(What is overwritten, with what, how)."""


class _Generator:
    """The state of a random generator, or a place in data, to be put into one of its kind."""

    def __init__(self, kind: str, state: Any) -> None:
        self._kind = kind
        self._state = state

    def put_into(self, live: Any) -> bool:
        """Set the state of ``live``; False when it is no such generator."""
        if self._kind == "position" and isinstance(live, Positioned):
            if self._state is not None and not live.follows_loop:
                live.seek(self._state)
        elif self._kind == "torch" and isinstance(live, torch.Generator):
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


def _rebuilt(tree: Any, shared: dict[str, Any]) -> Any:
    if isinstance(tree, Large):
        return tree.again()
    if isinstance(tree, dict):
        make = _MAKERS.get(tree[TAG])
        return make(tree, shared) if make is not None else _Generator(tree[TAG], tree["state"])
    if isinstance(tree, list):
        return [_rebuilt(each, shared) for each in tree]
    if isinstance(tree, tuple):
        return tuple(_rebuilt(each, shared) for each in tree)
    if isinstance(tree, torch.Tensor):
        return tree.clone()  # the program changes what it holds, and the tree may be needed again
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def _shared(tree: dict[str, Any], shared: dict[str, Any]) -> Any:
    """One object for all places that hold it."""
    name = tree["as"]
    if isinstance(known := shared.get(name), _Reserved):
        shared[name] = restored(tree["value"], known.object, shared)
    elif name not in shared:
        shared[name] = _rebuilt(tree["value"], shared)
    return shared[name]


def _large(tree: dict[str, Any], shared: dict[str, Any]) -> Any:
    """A copy: two tensors may hold the same, and are two."""
    device = torch.device(tree.get("device", "cpu"))
    held = shared[tree["print"]].to(device, copy=True)
    trained = tree.get("trained")
    return held if trained is None else torch.nn.Parameter(held, requires_grad=trained)


class _Reserved:
    """An object that is to become a shared value, and is not yet."""

    def __init__(self, reserved: Any) -> None:
        self.object = reserved


def reserve(tree: Any, like: Any, shared: dict[str, Any]) -> None:
    """Have ``like`` stand for the value of ``tree``, if that is held in several places."""
    if isinstance(tree, dict) and tree[TAG] == "shared":
        shared.setdefault(tree["as"], _Reserved(like))


def _dict(tree: dict[str, Any], shared: dict[str, Any]) -> Any:
    items = {_rebuilt(key, shared): _rebuilt(value, shared) for key, value in tree["items"]}
    if tree["kind"] == "defaultdict":
        factory = str(tree.get("factory", ""))
        make = (BUILTINS.get(factory) or of_name(factory)) if factory else None
        return collections.defaultdict(make, items)
    return _DICTS.get(tree["kind"], dict)(items)


def _records(tree: dict[str, Any], like: Any = None) -> Any:
    found = records_from(tree["layouts"], tree["data"], like=like)
    return found if tree["kind"] == "list" else collections.deque(found, tree["most"])


def _derived(tree: dict[str, Any], shared: dict[str, Any]) -> Any:
    """One of a class of the program's own, made without its constructor."""
    kind, content = of_name(tree["name"]), _rebuilt(tree["content"], shared)
    if base_of(kind) is not type(content):
        raise ValueError(f"{kind.__qualname__} is derived from another container here")
    made = empty_of(content, kind)
    fill(made, content)
    _set_attributes(made, {n: _rebuilt(each, shared) for n, each in tree["attributes"].items()})
    return made


_DICTS: Final = {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict}
_MAKERS: Final[Mapping[str, Callable[[dict[str, Any], dict[str, Any]], Any]]] = {
    "shared": _shared,
    LARGE: _large,
    SHAPE: lambda tree, _: tensor_of(tree),
    "dict": _dict,
    RECORDS: lambda tree, _: _records(tree),
    "derived": _derived,
    "deque": lambda tree, shared: collections.deque(
        (_rebuilt(each, shared) for each in tree["items"]), tree["most"]
    ),
    "set": lambda tree, shared: {_rebuilt(each, shared) for each in tree["items"]},
    "frozenset": lambda tree, shared: frozenset(_rebuilt(each, shared) for each in tree["items"]),
    ON_DEVICE: lambda tree, _: tree["value"].to(torch.device(tree["device"]), copy=True),
    "scalar": lambda tree, _: tree["value"][()],
    "complex": lambda tree, _: complex(*tree["value"]),
    "component": lambda tree, _: key_of(tree["name"]),
    "named": lambda tree, _: of_name(tree["name"]),
    "fields": lambda tree, shared: rebuilt(
        of_name(tree["name"]), [_rebuilt(each, shared) for each in tree["items"]]
    ),
}
