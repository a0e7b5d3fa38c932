"""Which objects and members there are, apart from what they hold.

A program makes objects while it trains: a meter for each phase, a record of the best epoch where
None was before. A joiner has to have as many, of the same classes, before it can be told what is in
them. So beside its parts, each object of the program has its class told, and each container of
objects its keys.
"""

from __future__ import annotations

import abc
import collections
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import torch

from trainmover_executor.program.looking.parts import set_attribute
from trainmover_executor.program.values.named import of_name, tree_of_name
from trainmover_executor.program.values.plain import is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import TAG, portable

__all__ = ["SHAPES", "Kind", "Members", "Shape", "bare", "entries_of", "name_of"]

Contents = Mapping[str, torch.Tensor]
"""Large tensors that came from another process, by their prints."""


class Shape(abc.ABC):
    """What an object or a container is, apart from what is in it.

    Args:
        of: The object, or the container.

    Attributes:
        MARK: Ends the path of a variable that tells such a shape.
    """

    MARK: ClassVar[str]

    def __init__(self, of: Any) -> None:
        self.of = of

    @abc.abstractmethod
    def tree(self) -> dict[str, Any]:
        """Portable."""

    @abc.abstractmethod
    def put_back(self) -> None:
        """Have it be what it was when this was made."""

    @classmethod
    @abc.abstractmethod
    def like(
        cls, tree: dict[str, Any], here: Any, values: Mapping[str, Any], path: str, large: Contents
    ) -> Any:
        """What stands for another process's: ``here`` itself where that can be changed to it.

        Args:
            tree: What ``tree`` said there.
            here: What this process has.
            values: What was told of all variables, by path.
            path: Of the variable.
            large: What came of large tensors.
        """


class Members(Shape):
    """Which members a dictionary, a list or a deque has."""

    MARK = "[]"

    def __init__(self, of: Any) -> None:
        super().__init__(of)
        self._entries = entries_of(of)

    def tree(self) -> dict[str, Any]:
        """Its own kind, keys if they can be told, and the name of each member's class."""
        keys = [portable(key) for key, _ in self._entries if is_plain(key)]
        kinds = [_told_of(member) for _, member in self._entries]
        told = len(keys) == len(kinds)
        empty = portable(_emptied(self.of))
        return {TAG: "held", "empty": empty, "keys": keys if told else None, "kinds": kinds}

    def put_back(self) -> None:
        """Have the container hold the members that it held when this was made."""
        _write(self.of, self._entries)

    @classmethod
    def like(
        cls, tree: dict[str, Any], here: Any, values: Mapping[str, Any], path: str, large: Contents
    ) -> Any:
        """A container with as many members; what is in them has to be put there yet."""
        if tree["keys"] is None:
            return here  # by objects, of which each process has its own
        empty = restored(tree["empty"], None)
        container = here if type(here) is type(empty) else empty
        mine = dict(entries_of(container))
        entries = []
        for told, kind in zip(tree["keys"], tree["kinds"], strict=True):
            key = restored(told, None)
            where, member = f"{path}[{key!r}]", mine.get(key)
            if key not in mine or (kind and kind != _told_of(member)):
                member = _new(values, where, large, kind=kind)
            if member is _ABSENT:
                return here
            entries.append((key, member))
        _write(container, entries)
        return container


class Kind(Shape):
    """Of which class an object of the program is."""

    MARK = "()"

    def tree(self) -> dict[str, Any]:
        """The name by which its class is found, and its attributes that are large tensors."""
        held = getattr(self.of, "__dict__", {}).copy()
        tensors = [name for name, each in held.items() if _is_large_tensor(each)]
        return {TAG: "kind", "name": name_of(type(self.of)), "tensors": sorted(tensors)}

    def put_back(self) -> None:
        """It is of no other class than before."""

    @classmethod
    def like(
        cls, tree: dict[str, Any], here: Any, values: Mapping[str, Any], path: str, large: Contents
    ) -> Any:
        """An object of that class, made without its constructor where there is none yet."""
        if tree["name"] == name_of(type(here)):
            return here
        made = _object(tree, values, path, large)
        return here if made is _ABSENT else made


_TENSOR: Final = "tensor"
_ABSENT: Final = object()
"""A large tensor travels to joiners alone, with the state: what holds it stays as it is until then.

A standby whose program found None in its place would end, where the program reads it.
"""

SHAPES: Final[tuple[type[Shape], ...]] = (Members, Kind)


def name_of(kind: type[Any]) -> str | None:
    """The name by which a class is found; None for one that has none."""
    return _name_of(kind)  # type: ignore[arg-type] # classes are hashable


_name_of: Final = functools.lru_cache(maxsize=4096)(tree_of_name)
"""Asked for each object at each look."""


def bare(path: str) -> str:
    """The path of the variable whose shape ``path`` tells."""
    return path.removesuffix(Members.MARK).removesuffix(Kind.MARK)


def entries_of(container: Any) -> list[tuple[Any, Any]]:
    """(key or index, member) of a dictionary or a sequence; none of a set."""
    if isinstance(container, dict):
        return list(container.copy().items())
    ordered = isinstance(container, list | tuple | collections.deque)
    return list(enumerate(container)) if ordered else []


def _told_of(member: Any) -> str:
    """The name of its class; empty for what is told as a value."""
    if _is_large_tensor(member):
        return _TENSOR
    return "" if is_plain(member) else name_of(type(member)) or ""


def _is_large_tensor(value: Any) -> bool:
    """Whether it is told of as a variable of its own, or not at all yet."""
    return isinstance(value, torch.Tensor) and not is_plain(value)


def _emptied(container: Any) -> Any:
    """A new one of its kind."""
    if isinstance(container, collections.deque):
        return collections.deque(maxlen=container.maxlen)
    if isinstance(container, collections.defaultdict):
        return collections.defaultdict(container.default_factory)
    return type(container)()


def _write(container: Any, entries: list[tuple[Any, Any]]) -> None:
    before = [(key, id(each)) for key, each in entries_of(container)]
    if before == [(key, id(each)) for key, each in entries]:
        return
    container.clear()
    if isinstance(container, dict):
        container.update(entries)
    else:
        container.extend(member for _, member in entries)


def _new(values: Mapping[str, Any], path: str, large: Contents, *, kind: str = "") -> Any:
    """What was told of ``path``; ``kind`` names the class of an object of which nothing was.

    Returns:
        ``_ABSENT`` where something is, or is in it, that did not come: a large tensor.
    """
    if (tree := values.get(path + Members.MARK)) is not None:
        return Members.like(tree, _ABSENT, values, path, large)
    if (tree := values.get(path + Kind.MARK)) is not None:
        return _object(tree, values, path, large)
    if path in values:
        return restored(values[path], None, {**large})
    if kind == _TENSOR:
        return _ABSENT
    return _object({"name": kind, "tensors": []}, values, path, large) if kind else None


def _object(tree: dict[str, Any], values: Mapping[str, Any], path: str, large: Contents) -> Any:
    """An object without its constructor, with the attributes that were told of."""
    try:
        made = object.__new__(of_name(tree["name"]))
    except (TypeError, ValueError):
        return _ABSENT  # only its constructor makes one
    inside = f"{path}."
    names = {bare(each).removeprefix(inside) for each in values if each.startswith(inside)}
    for name in sorted({*filter(str.isidentifier, names), *tree["tensors"]}):
        kind = _TENSOR if name in tree["tensors"] else ""
        member = _new(values, f"{inside}{name}", large, kind=kind)
        if member is _ABSENT:
            return _ABSENT
        set_attribute(made, name, member)
    return made
