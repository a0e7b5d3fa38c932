"""Which values of the program's variables can be carried to another process as they are.

Numbers, strings and the like, containers of them, small tensors and arrays, and random generators
of the program's own; members of enumerations, named tuples, frozen dataclasses and functions that
have a name (``named``); decimals, dates, ranges and counts (``standard``).
"""

from __future__ import annotations

import abc
import collections
import enum
import random
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import torch

from trainmover_executor.program.values.kinds.components import name_of_key
from trainmover_executor.program.values.kinds.derived import attributes_of, base_of, content_of
from trainmover_executor.program.values.kinds.named import CODE, fields_of, is_named, name_of
from trainmover_executor.program.values.kinds.records import records_of
from trainmover_executor.program.values.kinds.standard import STANDARD

__all__ = [
    "BUILTINS",
    "CONTAINERS",
    "MUTABLE",
    "NOWHERE",
    "PLAIN",
    "Positioned",
    "Shared",
    "in_two_places",
    "is_changeable",
    "is_generator",
    "is_key",
    "is_nameable",
    "is_plain",
    "is_tensor_of_program",
    "list_of",
    "size_of",
]


class Positioned(abc.ABC):
    """Something with a place that can be told and gone to, here or in another process.

    Attributes:
        follows_loop: The loop over the steps draws from it: its place is that of the loop's data,
            and nothing that a variable would tell.
    """

    follows_loop: bool = False

    @abc.abstractmethod
    def position(self) -> dict[str, Any]:
        """Where it is, as a portable tree that nobody changes."""

    @abc.abstractmethod
    def seek(self, position: dict[str, Any]) -> None:
        """Go to where ``position`` was taken; process-wide generators stay as they are."""


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
MUTABLE: Final = frozenset({torch.Tensor, np.ndarray, *CONTAINERS} - {tuple, frozenset})
"""What has an identity: two names of one of these are not two of them."""
_GENERATORS: Final = (
    *(torch.Generator, random.Random, np.random.Generator, np.random.RandomState),
    Positioned,
)
_NUMBERS: Final = PLAIN - {str, bytes}
_LIMIT_BYTES: Final = 16 * 1024
_LIMIT_ITEMS: Final = 1024
_LIMIT_NUMBERS: Final = 16 * 1024
"""In a list that is a variable, as the losses of all steps; or words of 8 bytes in an array.

One inside of another container may have fewer: that may be the whole of a data set.
"""
_DEPTH: Final = 8
BUILTINS: Final = {each.__name__: each for each in (int, float, str, bool, list, dict, set)}
"""What defaultdicts make entries of that can be named; see also ``named``."""

Shared = Mapping[int, str]
"""Names of mutable values that are held in several places, by id."""
NOWHERE: Final[Shared] = {}


def is_plain(value: Any, *, depth: int = _DEPTH) -> bool:
    """Whether ``value`` can be carried as it is."""
    kind = type(value)
    if kind in PLAIN:
        return kind not in {str, bytes} or len(value) <= _LIMIT_BYTES
    if kind in CONTAINERS:
        return _is_plain_container(value, depth)
    if _is_small_array(value, is_variable=depth == _DEPTH) or is_generator(value):
        return True
    if base_of(kind) is not None:
        return _is_plain_derived(value, depth)
    fields = fields_of(value)
    if fields is not None:
        return depth > 0 and all(is_plain(each, depth=depth - 1) for each in fields)
    return not isinstance(value, CODE) and is_named(value)


def _is_plain_container(value: Any, depth: int) -> bool:
    if records_of(value) is not None:
        return True
    is_long = depth == _DEPTH and not isinstance(value, dict)
    if depth == 0 or len(value) > (_LIMIT_NUMBERS if is_long else _LIMIT_ITEMS):
        return False
    items = list_of(value)
    if isinstance(value, dict):
        if not all(map(is_key, list(value))):
            return False
        # Only the outermost is overwritten; others are made anew, with what makes their entries.
        factory = getattr(value, "default_factory", None)
        if factory is not None and depth < _DEPTH and not is_nameable(factory):
            return False
    if _NUMBERS.issuperset(map(type, items)):
        return True
    # A generator cannot be made anew, only set: it is looked at as a variable of its own.
    return len(items) <= _LIMIT_ITEMS and all(
        is_plain(each, depth=depth - 1) and not is_generator(each) for each in items
    )


def is_changeable(kind: type[Any]) -> bool:
    """Whether what is of a class may be overwritten in place: containers, tensors, generators."""
    return kind in MUTABLE or base_of(kind) is not None or issubclass(kind, _GENERATORS)


def _is_plain_derived(value: Any, depth: int) -> bool:
    if depth == 0 or len(value) > _LIMIT_NUMBERS or name_of(type(value)) is None:
        return False
    attributes = attributes_of(value)
    return _is_plain_container(content_of(value), depth) and (
        not attributes or _is_plain_container(attributes, depth)
    )


def list_of(container: Any) -> list[Any] | tuple[Any, ...]:
    """The members of a container, of a dictionary its values, as they are now.

    Threads of the program may change it meanwhile, and Python ends a loop over it then.
    """
    if isinstance(container, list | tuple):
        return container  # a loop over these goes on
    return list(container.values() if isinstance(container, Mapping) else container)


def members_in(value: Any) -> list[Any] | tuple[Any, ...]:
    """The members of any container, and the attributes of one of a class of the program's own."""
    if base_of(type(value)) is None:
        return list_of(value)
    return [*list_of(content_of(value)), *attributes_of(value).values()]


def is_key(key: Any) -> bool:
    """Whether ``key`` can be told of where a dictionary has it."""
    if type(key) in PLAIN or isinstance(key, enum.Enum) or name_of_key(key) is not None:
        return True
    if type(key) in STANDARD:
        return is_named(key)
    return type(key) is tuple and all(map(is_key, key))


def is_nameable(factory: Any) -> bool:
    """Whether what makes entries of a defaultdict can be found by a name."""
    return BUILTINS.get(getattr(factory, "__name__", "")) is factory or is_named(factory)


def in_two_places(values: Iterable[tuple[str, Any]]) -> Shared:
    """Names of the containers, tensors and arrays that ``values`` hold more than once, by id.

    Args:
        values: Plain values by a name of each.
    """
    first: dict[int, str] = {}
    shared: dict[int, str] = {}

    def visit(value: Any, name: str) -> None:
        kind = type(value)
        if kind in PLAIN:
            return
        is_derived = base_of(kind) is not None
        if kind in MUTABLE or is_derived:
            if id(value) in first:
                shared[id(value)] = first[id(value)]
                return
            first[id(value)] = name
        if (kind in CONTAINERS or is_derived) and records_of(value) is None:
            items = members_in(value)
            if PLAIN.issuperset(map(type, items)):
                return
            for at, each in enumerate(items):
                if type(each) not in PLAIN:
                    visit(each, f"{name}/{at}")

    for name, value in values:
        visit(value, name)
    return shared


def is_tensor_of_program(value: torch.Tensor) -> bool:
    """Whether ``value`` is a plain tensor, and no parameter."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and not (value.is_leaf and value.requires_grad)
    )


def _is_small_array(value: Any, *, is_variable: bool) -> bool:
    if isinstance(value, torch.Tensor):
        is_small = value.numel() * value.element_size() <= _LIMIT_BYTES
        return is_small and is_tensor_of_program(value)
    if isinstance(value, np.ndarray):
        limit = 8 * _LIMIT_NUMBERS if is_variable else _LIMIT_BYTES
        is_small = value.nbytes <= limit and value.dtype.kind in "biufc"
        return is_small and type(value) is np.ndarray  # a masked one is not what it holds
    return isinstance(value, np.generic) and value.dtype.kind in "biufc"


def is_generator(value: Any) -> bool:
    """Whether it cannot be made anew, only set."""
    return isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom)


def size_of(value: Any) -> int:
    """Roughly the bytes that carrying a plain value takes."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    sized = value if isinstance(value, np.ndarray | np.generic) else records_of(value)
    if sized is not None:
        return sized.nbytes
    if is_generator(value):
        return 5 * 1024
    if isinstance(value, Mapping):
        return sum(size_of(each) + 16 for each in members_in(value))
    is_container = type(value) in CONTAINERS or base_of(type(value)) is not None
    parts = members_in(value) if is_container else fields_of(value)
    if parts is not None:
        return sum(map(size_of, parts))
    return len(value) if isinstance(value, str | bytes) else 8
