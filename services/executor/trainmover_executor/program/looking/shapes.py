"""Which objects and members there are, apart from what they hold.

A program makes objects while it trains: a meter for each phase, a record of the best epoch where
None was before. A joiner has to have as many, of the same classes, before it can be told what is in
them. So beside its parts, each object of the program has its class told, and each container of
objects its keys.
"""

from __future__ import annotations

import abc
import collections
import types
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

import torch

from trainmover_executor.program.looking.generators import Call, move_to, place_of
from trainmover_executor.program.looking.parts import set_attribute
from trainmover_executor.program.values.kinds.components import key_text
from trainmover_executor.program.values.kinds.derived import (
    attributes_of,
    base_of,
    content_of,
    empty_of,
    fill,
)
from trainmover_executor.program.values.kinds.named import name_of, of_name
from trainmover_executor.program.values.plain import is_key, is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import TAG, portable, portable_key

__all__ = ["SHAPES", "Kind", "Members", "Shape", "Suspended", "bare", "entries_of", "members_in"]

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
        """Its own kind, keys if they can be told, and the name of each member's class.

        A class without a name cannot be told of: where it is, it is filled.
        """
        keys = [portable_key(key) for key, _ in self._entries if is_key(key) or is_plain(key)]
        kinds = [_told_of(member) for _, member in self._entries]
        told = len(keys) == len(kinds)
        empty = portable(empty) if is_plain(empty := empty_of(self.of, type(self.of))) else None
        tree = {TAG: "held", "empty": empty, "keys": keys if told else None, "kinds": kinds}
        return {**tree, "twice": self._held_twice()} if base_of(type(self.of)) else tree

    def _held_twice(self) -> list[str]:
        """Names of members that are attributes, too: some dictionaries hold all of theirs so."""
        attributes = attributes_of(self.of)
        return [key for key, member in self._entries if attributes.get(key, _ABSENT) is member]

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
        container = here if empty is None or type(here) is type(empty) else empty
        if not isinstance(container, _CHANGEABLE):
            return here
        mine = dict(entries_of(container))
        entries = []
        for told, kind in zip(tree["keys"], tree["kinds"], strict=True):
            key = restored(told, None)
            where, member = f"{path}[{key_text(key)}]", mine.get(key)
            if key not in mine or (kind and kind != _told_of(member)):
                member = _new(values, where, large, kind=kind)
            if member is _ABSENT:
                return here
            entries.append((key, member))
        _write(container, entries)
        for name, member in [entry for entry in entries if entry[0] in tree.get("twice", ())]:
            object.__setattr__(container, name, member)
        if container is not here and base_of(type(container)) is not None:
            _set_attributes(container, (), values, path, large)
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


class Suspended(Shape):
    """At which of its ``yield`` a generator stands."""

    MARK = "(yield)"

    def __init__(self, of: Any) -> None:
        super().__init__(of)
        self._at = place_of(of)
        self._ended = of.gi_frame is None
        self._call = None if self._ended or self._at is not None else Call(of)

    def tree(self) -> dict[str, Any]:
        """The place in its code; None before it was begun and behind its end."""
        return {TAG: "yield", "at": self._at, "ended": self._ended}

    def put_back(self) -> None:
        """Have it stand where it stood when this was made.

        Raises:
            ProtocolError: It cannot be moved there.
        """
        if self._call is not None and place_of(self.of) is not None:
            self.of = self._call.again(self.of)
        move_to(self.of, self._at, name=self.of.__qualname__)

    @classmethod
    def like(
        cls, tree: dict[str, Any], here: Any, values: Mapping[str, Any], path: str, large: Contents
    ) -> Any:
        """``here``, moved to that place.

        Raises:
            ProtocolError: It cannot be moved there.
        """
        del values, large
        if isinstance(here, types.GeneratorType):
            if tree["ended"]:
                here.close()
            else:
                move_to(here, tree["at"], name=path)
        return here


_CHANGEABLE: Final = (dict, list, collections.deque)
_TENSOR: Final = "tensor"
_ABSENT: Final = object()
"""A large tensor travels to joiners alone, with the state: what holds it stays as it is until then.

A standby whose program found None in its place would end, where the program reads it.
"""

SHAPES: Final[tuple[type[Shape], ...]] = (Members, Kind, Suspended)


def members_in(path: str, tree: Any) -> list[str]:
    """Paths of the objects in a container whose members were told: they may be too deep.

    Args:
        path: Of the variable.
        tree: Its portable tree.
    """
    if not path.endswith(Members.MARK) or tree["keys"] is None:
        return []
    told = zip(tree["keys"], tree["kinds"], strict=True)
    keys = [key_text(restored(key, None)) for key, kind in told if kind not in {"", _TENSOR}]
    return [f"{bare(path)}[{key}]" for key in keys]


def bare(path: str) -> str:
    """The path of the variable whose shape ``path`` tells."""
    for shape in SHAPES:
        path = path.removesuffix(shape.MARK)
    return path


def entries_of(container: Any) -> list[tuple[Any, Any]]:
    """(key or index, member) of a dictionary or a sequence; none of a set."""
    held = container if base_of(type(container)) is None else content_of(container)
    if isinstance(held, dict):
        return list(held.copy().items())
    return list(enumerate(held)) if isinstance(held, list | tuple | collections.deque) else []


def _told_of(member: Any) -> str:
    """The name of its class; empty for what is told as a value."""
    if _is_large_tensor(member):
        return _TENSOR
    return "" if is_plain(member) else name_of(type(member)) or ""


def _is_large_tensor(value: Any) -> bool:
    """Whether it is told of as a variable of its own, or not at all yet."""
    return isinstance(value, torch.Tensor) and not is_plain(value)


def _write(container: Any, entries: list[tuple[Any, Any]]) -> None:
    before = [(key_text(key), id(each)) for key, each in entries_of(container)]
    if before == [(key_text(key), id(each)) for key, each in entries]:
        return
    keyed = isinstance(container, dict)
    fill(container, dict(entries) if keyed else [member for _, member in entries])


def _new(values: Mapping[str, Any], path: str, large: Contents, *, kind: str = "") -> Any:
    """What was told of ``path``; ``kind`` names the class of an object of which nothing was.

    Returns:
        ``_ABSENT`` where something is, or is in it, that did not come: a large tensor, or an object
        that nobody looked into.
    """
    if (tree := values.get(path + Members.MARK)) is not None:
        return Members.like(tree, _ABSENT, values, path, large)
    if (tree := values.get(path + Kind.MARK)) is not None:
        return _object(tree, values, path, large)
    if path in values:
        return restored(values[path], None, {**large})
    if not kind:
        return None
    is_told = any(each.startswith(f"{path}.") for each in values)
    if kind == _TENSOR or (_has_constructor(kind) and not is_told):
        return _ABSENT
    return _object({"name": kind, "tensors": []}, values, path, large)


def _has_constructor(name: str) -> bool:
    """Whether objects of a class have something in them, most likely, once they are made."""
    try:
        kind = of_name(name)
    except (TypeError, ValueError):
        return True
    return kind.__init__ is not object.__init__


def _object(tree: dict[str, Any], values: Mapping[str, Any], path: str, large: Contents) -> Any:
    """An object without its constructor, with the attributes that were told of."""
    try:
        made = object.__new__(of_name(tree["name"]))
    except (TypeError, ValueError):
        return _ABSENT  # only its constructor makes one
    complete = _set_attributes(made, tree["tensors"], values, path, large)
    return made if complete else _ABSENT


def _set_attributes(
    made: Any, tensors: Collection[str], values: Mapping[str, Any], path: str, large: Contents
) -> bool:
    """Whether all were told that ``made`` has."""
    inside = f"{path}."
    names = {bare(each).removeprefix(inside) for each in values if each.startswith(inside)}
    for name in sorted({*filter(str.isidentifier, names), *tensors}):
        member = _new(values, f"{inside}{name}", large, kind=_TENSOR if name in tensors else "")
        if member is _ABSENT:
            return False
        set_attribute(made, name, member)
    return True
