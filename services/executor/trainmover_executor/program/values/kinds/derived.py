"""Containers of classes that a program derives from Python's, such as a dictionary with attributes.

They hold members as what they are derived from does, and attributes beside them. Whatever is done
to them here, that base's methods do: those of their own may count, copy or refuse.
"""

from __future__ import annotations

import collections
import functools
from typing import Any, Final

__all__ = ["attributes_of", "base_of", "content_of", "empty_of", "fill"]

_BASES: Final = frozenset(
    {
        *(dict, list, set, collections.deque),
        *(collections.Counter, collections.OrderedDict, collections.defaultdict),
    }
)


def base_of(kind: type[Any]) -> Any:
    """The container of Python that ``kind`` is derived from; None for it, and for other classes."""
    return _base_of(kind)  # type: ignore[arg-type] # classes are hashable


@functools.lru_cache(maxsize=4096)
def _base_of(kind: type[Any]) -> type[Any] | None:
    if kind in _BASES:
        return None
    return next((each for each in kind.__mro__ if each in _BASES), None)


def content_of(value: Any) -> Any:
    """Its members, in a new container of Python."""
    base = base_of(type(value))
    content = empty_of(value, base)
    if issubclass(base, dict):
        content.update(dict(base.items(value)))
    else:
        fill(content, base.copy(value))
    return content


def empty_of(value: Any, kind: type[Any]) -> Any:
    """A container of class ``kind`` without members that is set as ``value`` is."""
    base: Any = base_of(kind) or kind
    made = base.__new__(kind)
    if isinstance(value, collections.deque):
        collections.deque.__init__(made, (), value.maxlen)
    if isinstance(value, collections.defaultdict):
        object.__setattr__(made, "default_factory", value.default_factory)
    return made


def fill(value: Any, content: Any) -> None:
    """Have ``value``, any container that can be changed, hold the members of ``content``."""
    base = base_of(type(value)) or type(value)
    base.clear(value)
    if issubclass(base, dict):
        for key, member in content.items():
            base.__setitem__(value, key, member)
    elif issubclass(base, set):
        base.update(value, content)
    else:
        base.extend(value, content)


def attributes_of(value: Any) -> dict[str, Any]:
    """What it holds beside its members."""
    held = getattr(value, "__dict__", {}).copy()
    return {name: each for name, each in held.items() if not name.startswith("__")}
