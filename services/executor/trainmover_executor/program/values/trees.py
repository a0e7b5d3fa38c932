"""Plain values as portable trees (see ``state.codec``).

What a container holds, it holds itself: the same list in two places is told of as ``shared``.
"""

from __future__ import annotations

import collections
import random
from functools import singledispatch
from typing import Any, Final

import numpy as np
import torch

from trainmover_executor.program.values.kinds.components import have_ids, name_of_key
from trainmover_executor.program.values.kinds.derived import attributes_of, base_of, content_of
from trainmover_executor.program.values.kinds.named import fields_of, tree_of_name
from trainmover_executor.program.values.kinds.records import Records, records_of
from trainmover_executor.program.values.plain import (
    NOWHERE,
    PLAIN,
    Positioned,
    Shared,
    is_nameable,
)
from trainmover_executor.state.packing.memory import on_host

__all__ = [
    "ON_DEVICE",
    "RECORDS",
    "TAG",
    "is_only_set",
    "is_tree_of_generator",
    "portable",
    "portable_key",
    "tree_of_tensor",
]

TAG: Final = "is"
ON_DEVICE: Final = "on device"
"""How a portable tree tags a tensor that is not in the memory of the host."""
RECORDS: Final = "records"
"""How one tags a list of many records."""
_AS_THEY_ARE: Final = PLAIN - {complex}
_GENERATORS: Final = frozenset({"torch", "python", "numpy"})
_SET: Final = _GENERATORS | {"position"}


def portable(value: Any, shared: Shared = NOWHERE) -> Any:
    """A copy of a plain value, as a portable tree (see ``state.codec``).

    Args:
        value: The value.
        shared: What ``in_two_places`` found.
    """
    if type(value) in PLAIN and type(value) is not complex:
        return value
    tree = _tree(value, shared) if base_of(type(value)) is None else _derived(value, shared)
    name = shared.get(id(value)) if shared else None
    return tree if name is None else {TAG: "shared", "as": name, "value": tree}


def portable_key(key: Any) -> Any:
    """The same of a key of a dictionary, which may be a part of the session's models."""
    if type(key) is tuple:
        return tuple(map(portable_key, key))
    name = name_of_key(key)
    return portable(key) if name is None else {TAG: "component", "name": name}


def is_tree_of_generator(tree: Any) -> bool:
    """Whether ``portable`` made it of a generator of random numbers."""
    return isinstance(tree, dict) and tree.get(TAG) in _GENERATORS


def is_only_set(tree: Any) -> bool:
    """Whether ``portable`` made it of what cannot be made anew: a generator, a place in data."""
    return isinstance(tree, dict) and tree.get(TAG) in _SET


def _derived(value: Any, shared: Shared) -> dict[str, Any]:
    attributes = {name: portable(each, shared) for name, each in attributes_of(value).items()}
    content = _tree(content_of(value), shared)
    name = tree_of_name(type(value))
    return {TAG: "derived", "name": name, "content": content, "attributes": attributes}


@singledispatch
def _tree(value: Any, shared: Shared) -> Any:
    fields = fields_of(value)
    named = tree_of_name(value if fields is None else type(value))
    if named is None:
        return value
    if fields is None:
        return {TAG: "named", "name": named}
    return {TAG: "fields", "name": named, "items": [portable(each, shared) for each in fields]}


def tree_of_tensor(value: torch.Tensor) -> Any:
    """A copy, and of what kind the device is that it is on, where that is not the host.

    Which of several it is differs from rank to rank.
    """
    held = value.detach().clone()
    if on_host(held):
        return held
    return {TAG: ON_DEVICE, "device": held.device.type, "value": held}


@_tree.register
def _(value: torch.Tensor, shared: Shared) -> Any:
    del shared
    return tree_of_tensor(value)


@_tree.register
def _(value: np.ndarray, shared: Shared) -> Any:
    del shared
    return value.copy()


@_tree.register
def _(value: np.generic, shared: Shared) -> Any:
    del shared
    return {TAG: "scalar", "value": np.array(value)}


@_tree.register
def _(value: complex, shared: Shared) -> Any:
    del shared
    return {TAG: "complex", "value": [value.real, value.imag]}


@_tree.register(dict)
def _(value: dict[Any, Any], shared: Shared) -> Any:
    held = value.copy()  # threads of the program may change it meanwhile
    as_they_are = _AS_THEY_ARE.issuperset(map(type, held)) and not have_ids(held)
    if as_they_are and _AS_THEY_ARE.issuperset(map(type, held.values())):
        items = list(map(list, held.items()))
    else:
        items = [[portable_key(k), portable(v, shared)] for k, v in held.items()]
    tree = {TAG: "dict", "kind": type(value).__name__, "items": items}
    factory = getattr(value, "default_factory", None)
    if factory is not None and is_nameable(factory):
        tree["factory"] = tree_of_name(factory) or factory.__name__
    return tree


@_tree.register(list)
def _(value: Any, shared: Shared) -> Any:
    if (records := records_of(value)) is not None:
        return _tree_of_records(records, kind="list")
    if _AS_THEY_ARE.issuperset(map(type, value)):
        return list(value)
    return [portable(each, shared) for each in value]


@_tree.register(collections.deque)
def _(value: Any, shared: Shared) -> Any:
    if (records := records_of(value)) is not None:
        return _tree_of_records(records, kind="deque", most=value.maxlen)
    items = [portable(each, shared) for each in value.copy()]
    return {TAG: "deque", "items": items, "most": value.maxlen}


def _tree_of_records(records: Records, *, kind: str, most: int | None = None) -> dict[str, Any]:
    about = {"kind": kind, "most": most, "layouts": records.layouts}
    return {TAG: RECORDS, **about, "data": records.packed}


@_tree.register(tuple)
def _(value: tuple[Any, ...], shared: Shared) -> Any:
    if type(value) is not tuple:
        return _tree.dispatch(object)(value, shared)
    return tuple(portable(each, shared) for each in value)


@_tree.register(set)
@_tree.register(frozenset)
def _(value: Any, shared: Shared) -> Any:
    del shared
    return {TAG: type(value).__name__, "items": [portable(each) for each in value.copy()]}


@_tree.register
def _(value: Positioned, shared: Shared) -> Any:
    del shared
    return {TAG: "position", "state": None if value.follows_loop else value.position()}


@_tree.register
def _(value: torch.Generator, shared: Shared) -> Any:
    del shared
    return {TAG: "torch", "state": value.get_state()}


@_tree.register
def _(value: random.Random, shared: Shared) -> Any:
    del shared
    version, words, gauss = value.getstate()
    return {TAG: "python", "state": [version, list(words), gauss]}


@_tree.register
def _(value: np.random.RandomState, shared: Shared) -> Any:
    del shared
    return {TAG: "numpy", "state": value.get_state(legacy=False)}


@_tree.register
def _(value: np.random.Generator, shared: Shared) -> Any:
    del shared
    return {TAG: "numpy", "state": value.bit_generator.state}
