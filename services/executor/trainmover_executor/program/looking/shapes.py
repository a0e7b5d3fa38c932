"""Which objects and members there are, apart from what they hold.

A program makes objects while it trains: a meter for each phase, a record of the best epoch where
None was before. A joiner has to have as many, of the same classes, before it can be told what is in
them. So beside its parts, each object of the program has its class told, and each container of
objects its keys.
"""

from __future__ import annotations

import abc
import bisect
import collections
import functools
import itertools
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import torch

from trainmover_executor.program.holders.identities import Identities
from trainmover_executor.program.looking.generators import Call, move_to, place_of
from trainmover_executor.program.looking.parts import is_made_by_script, set_attribute, slots_of
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

__all__ = [
    "SHAPES",
    "Kind",
    "Members",
    "Shape",
    "Suspended",
    "Told",
    "bare",
    "entries_of",
    "has_kind",
    "made_later",
    "members_in",
]


@dataclass(frozen=True)
class Told:
    """What another process told of its variables.

    Attributes:
        values: Portable trees, by path.
        contents: What came of large tensors, by their prints.
        identities: What the objects are known by that both processes had at first.
        made: Objects that were made here for others of that process, by what it knows them by.
    """

    values: Mapping[str, Any]
    contents: Mapping[str, torch.Tensor]
    identities: Identities
    made: dict[str, Any] = field(default_factory=dict)

    def inside(self, path: str) -> list[str]:
        """What is told of the members of an object: the paths behind its own."""
        begin = f"{path}."
        first = bisect.bisect_left(self._in_order, begin)
        rest = itertools.islice(self._in_order, first, None)
        found = itertools.takewhile(lambda each: each.startswith(begin), rest)
        return [each.removeprefix(begin) for each in found]

    @functools.cached_property
    def _in_order(self) -> list[str]:
        return sorted(self.values)


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
    def like(cls, tree: dict[str, Any], here: Any, path: str, told: Told) -> Any:
        """What stands for another process's: ``here`` itself where that can be changed to it.

        Args:
            tree: What ``tree`` said there.
            here: What this process has.
            path: Of the variable.
            told: What was told of all variables.
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
    def like(cls, tree: dict[str, Any], here: Any, path: str, told: Told) -> Any:
        """A container with as many members; what is in them has to be put there yet."""
        if tree["keys"] is None:
            return here  # by objects, of which each process has its own
        empty = restored(tree["empty"], None)
        container = here if empty is None or type(here) is type(empty) else empty
        if not isinstance(container, _CHANGEABLE):
            return here
        mine = dict(entries_of(container))
        entries = []
        for said, kind in zip(tree["keys"], tree["kinds"], strict=True):
            key = restored(said, None)
            where, member = f"{path}[{key_text(key)}]", mine.get(key)
            if key not in mine or (kind and kind != _told_of(member)):
                member = _new(told, where, kind=kind)
            if member is _ABSENT:
                return here
            entries.append((key, member))
        _write(container, entries)
        for name, member in [entry for entry in entries if entry[0] in tree.get("twice", ())]:
            object.__setattr__(container, name, member)
        if container is not here and base_of(type(container)) is not None:
            _set_attributes(container, (), path, told)
        return container


class Kind(Shape):
    """Of which class an object of the program is, and which one it is.

    Args:
        of: The object.
        name: What it is known by; empty where it cannot be.
        inside: How the paths begin of what it holds.
    """

    MARK = "()"

    def __init__(self, of: Any, *, name: str = "", inside: str = "") -> None:
        super().__init__(of)
        self._name = name
        self._inside = inside

    def tree(self) -> dict[str, Any]:
        """The names of its class and of itself, its attributes, and which are large tensors."""
        held = getattr(self.of, "__dict__", {}).copy()
        tensors = sorted(name for name, each in held.items() if _is_large_tensor(each))
        tree = {
            TAG: "kind",
            "name": name_of(type(self.of)),
            "tensors": tensors,
            "known": self._name,
        }
        if not Identities.is_later(self._name):
            return tree
        slots = (name for name in slots_of(type(self.of)) if hasattr(self.of, name))  # type: ignore[arg-type]
        has = sorted(name for name in (*held, *slots) if not name.startswith("__"))
        return {**tree, "inside": self._inside, "has": has}

    def put_back(self) -> None:
        """It is of no other class than before."""

    @classmethod
    def like(cls, tree: dict[str, Any], here: Any, path: str, told: Told) -> Any:
        """That object, if it was here at first; else one made without its constructor."""
        name, kind = tree.get("known", ""), tree["name"]  # no name from a release before
        known = told.made.get(name) if name else None
        if known is None and name and not Identities.is_later(name):
            known = told.identities.of(name)
        if known is not None and name_of(type(known)) == kind:
            return known
        if kind == name_of(type(here)) and not _is_another(tree, here, path, told):
            made = here
        else:
            made = _object(tree, tree.get("inside", path), told)
        if made is _ABSENT:
            return here
        if name:
            told.made[name] = made
        return made


def _is_another(tree: dict[str, Any], here: Any, path: str, told: Told) -> bool:
    """Whether ``here`` may have other names, by which it stays, and a new one can be made."""
    if "has" not in tree:
        return False
    mine, inside = told.identities.name_of(here, path), tree["inside"]
    is_here = mine == path or Identities.is_first_at(tree["known"], path)
    if not mine or (is_here and inside == path):
        return False
    return {*tree["has"]} <= {bare(each) for each in told.inside(inside)} | {*tree["tensors"]}


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
    def like(cls, tree: dict[str, Any], here: Any, path: str, told: Told) -> Any:
        """``here``, moved to that place.

        Raises:
            ProtocolError: It cannot be moved there.
        """
        del told
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


def has_kind(value: Any) -> bool:
    """Whether ``value`` is an object of the script's classes, and not one derived from a list."""
    kind = type(value)
    if isinstance(value, type) or not is_made_by_script(kind):
        return False
    return base_of(kind) is None and bool(name_of(kind))


def made_later(path: str, tree: Any) -> str:
    """How the paths begin of what an object holds that was made behind the first look; else empty.

    Args:
        path: Of the variable.
        tree: Its portable tree.
    """
    return f"{tree['inside']}." if path.endswith(Kind.MARK) and "has" in tree else ""


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


def _new(told: Told, path: str, *, kind: str = "") -> Any:
    """What was told of ``path``; ``kind`` names the class of an object of which nothing was.

    Returns:
        ``_ABSENT`` where something is, or is in it, that did not come: a large tensor, or an object
        that nobody looked into.
    """
    if (tree := told.values.get(path + Members.MARK)) is not None:
        return Members.like(tree, _ABSENT, path, told)
    if (tree := told.values.get(path + Kind.MARK)) is not None:
        return Kind.like(tree, _ABSENT, path, told)
    if path in told.values:
        return restored(told.values[path], None, {**told.contents})
    if not kind:
        return None
    if kind == _TENSOR or (_has_constructor(kind) and not told.inside(path)):
        return _ABSENT
    return _object({"name": kind, "tensors": []}, path, told)


def _has_constructor(name: str) -> bool:
    """Whether objects of a class have something in them, most likely, once they are made."""
    try:
        kind = of_name(name)
    except (TypeError, ValueError):
        return True
    return kind.__init__ is not object.__init__


def _object(tree: dict[str, Any], path: str, told: Told) -> Any:
    """An object without its constructor, with the attributes that were told of."""
    try:
        made = object.__new__(of_name(tree["name"]))
    except (TypeError, ValueError):
        return _ABSENT  # only its constructor makes one
    if name := tree.get("known"):
        told.made[name] = made  # what it holds may hold it
    if _set_attributes(made, tree["tensors"], path, told):
        return made
    told.made.pop(name or "", None)
    return _ABSENT


def _set_attributes(made: Any, tensors: Collection[str], path: str, told: Told) -> bool:
    """Whether all were told that ``made`` has."""
    names = {bare(each) for each in told.inside(path)}
    for name in sorted({*filter(str.isidentifier, names), *tensors}):
        member = _new(told, f"{path}.{name}", kind=_TENSOR if name in tensors else "")
        if member is _ABSENT:
            return False
        set_attribute(made, name, member)
    return True
