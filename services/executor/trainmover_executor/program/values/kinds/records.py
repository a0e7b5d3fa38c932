"""Long lists of records: a replay memory, the history of a run.

A record is a tuple, or a named tuple of the program's, of numbers and small tensors that nobody
writes to. Thousands of them are looked at in each step, and go to other machines with each vote. So
each one is packed once, into a few bytes beside what all of its kind have in common.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import itertools
import operator
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from trainmover_executor.program.values.kinds.fields import (
    FieldKind,
    packed_field,
    reader_of_field,
)
from trainmover_executor.program.values.kinds.named import (
    fields_of,
    of_name,
    rebuilt,
    tree_of_name,
)
from trainmover_executor.state.packing.memory import bytes_of

__all__ = ["Records", "one_look", "records_from", "records_of"]

_LISTS: Final = frozenset({list, collections.deque})
_FEWEST: Final = 128
"""Shorter lists are carried member by member: two of their members may hold one tensor."""
_MOST: Final = 64 * 1024
_MOST_BYTES: Final = 1024 * 1024
_MOST_LISTS: Final = 16
_MOST_REFUSED: Final = 1024
_MOST_LAYOUTS: Final = 256
_AT_ONCE: Final = 512
"""Of so many records each call asks whether their tensors were written to."""

_Layout = tuple[str, tuple[FieldKind, ...]]
"""The name of a record's class, and of what kind each of its fields is."""

_NAMES: Final[Mapping[type, str]] = {tuple: "tuple", type(None): "none"}
"""Of classes that need not be found by a name."""

_version_of: Final = operator.attrgetter("_version")


@dataclass(frozen=True, slots=True)
class Records:
    """A list of records as it was at some look.

    Attributes:
        layouts: Of what kinds its records are, as a portable tree.
        packed: For each record the number of its layout, two bytes, and its content.
        nbytes: How many bytes these are.
    """

    layouts: list[Any]
    packed: torch.Tensor
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Record:
    """One that was packed; what it consists of is kept, so that its ``id`` is not another's."""

    value: Any
    packed: bytes
    tensors: list[torch.Tensor]
    versions: int
    arrays: list[np.ndarray[Any, Any]]
    written: bytes


class _List:
    """What was seen of one list.

    Attributes:
        container: The list itself.
    """

    def __init__(self, container: Any) -> None:
        self.container = container
        self._known: dict[int, _Record] = {}
        self._packed: dict[int, bytes] = {}
        self._layouts: dict[_Layout, int] = {}
        self._ids: list[int] = []
        self._records: Records | None = None
        self._at = 0

    def records(self) -> Collection[_Record]:
        """Those that it held at the last look."""
        return self._known.values()

    def has_layouts(self, layouts: list[_Layout]) -> bool:
        """Whether records with ``layouts`` are packed here in the same way."""
        return list(self._layouts)[: len(layouts)] == layouts

    def adopt(self, layouts: list[_Layout], records: list[_Record]) -> None:
        """It is to hold ``records``."""
        for layout in layouts:
            self._layouts.setdefault(layout, len(self._layouts))
        self._known = {id(record.value): record for record in records}
        self._packed = {id_: record.packed for id_, record in self._known.items()}
        self._ids = []

    def may_hold(self, value: Any) -> bool:
        """Whether ``value`` is a record."""
        return self._record(value) is not None

    def look(self, values: list[Any]) -> Records | None:
        """Its records now.

        Returns:
            None where it is too large, or holds something else, or a record that was written to:
            two variables may hold one tensor.
        """
        ids = list(map(id, values))  # what they stand for is kept, so none is another's
        same = ids == self._ids
        if not (same or self._know(ids, values)) or self._was_written_to():
            return None
        if not same:
            data = bytearray().join(map(self._packed.__getitem__, ids))
            packed = torch.frombuffer(data, dtype=torch.uint8)
            self._ids = ids
            self._records = Records(list(map(_told, self._layouts)), packed, len(data))
        records = self._records
        return records if records is not None and records.nbytes <= _MOST_BYTES else None

    def _was_written_to(self) -> bool:
        """Whether one of some was; others have their turn at the next calls."""
        looked_at = list(itertools.islice(self._known.values(), self._at, self._at + _AT_ONCE))
        self._at = self._at + _AT_ONCE if looked_at else 0
        tensors = itertools.chain.from_iterable(each.tensors for each in looked_at)
        if sum(map(_version_of, tensors)) != sum(each.versions for each in looked_at):
            return True
        return any(each.arrays and _bytes_of(each.arrays) != each.written for each in looked_at)

    def _know(self, ids: list[int], values: list[Any]) -> bool:
        """Pack what is new, and forget what is gone."""
        known, packed = self._known, self._packed
        for id_, value in zip(ids, values, strict=True):
            if id_ not in known:
                record = self._record(value)
                if record is None:
                    return False
                known[id_], packed[id_] = record, record.packed
        for gone in known.keys() - set(ids):
            del known[gone], packed[gone]
        return True

    def _record(self, value: Any) -> _Record | None:
        """``value``, packed; a place that nothing was put into yet is a record, too."""
        fields = _fields_of(value)
        name = _NAMES.get(type(value)) or tree_of_name(type(value))
        if fields is None or name is None:
            return None
        found = [packed_field(each) for each in fields]
        if not all(found):
            return None
        kinds, parts = zip(*filter(None, found), strict=True) if found else ((), ())
        at = self._layouts.setdefault((name, kinds), len(self._layouts))
        if at >= _MOST_LAYOUTS:
            return None
        return _record_of(value, b"".join([at.to_bytes(2, "little"), *parts]))


_lists: Final[collections.OrderedDict[int, _List]] = collections.OrderedDict()
_refused: Final[collections.OrderedDict[int, Any]] = collections.OrderedDict()
"""What is not asked for again: of a deque a reference, of a list, of which there are none, the
``id`` of its first member. It is not kept alive: rollouts may be large."""
_asked: contextvars.ContextVar[dict[int, tuple[Any, Records | None]] | None]
_asked = contextvars.ContextVar("lists that one look has asked for", default=None)


@contextlib.contextmanager
def one_look() -> Iterator[None]:
    """The program stands still meanwhile: each list is looked at once.

    Nobody else looks for records: what loaders keep has an order of its own.
    """
    token = _asked.set({})
    try:
        yield
    finally:
        _asked.reset(token)


def records_of(container: Any) -> Records | None:
    """The records of a list or a deque; None for one that is short, or that holds something else.

    And outside of ``one_look``. What has not changed since the last one is not packed again.
    """
    asked = _asked.get()
    if asked is None or type(container) not in _LISTS:
        return None
    if not _FEWEST < len(container) <= _MOST:
        return None
    if id(container) not in asked:
        asked[id(container)] = container, _look_at(container)
    return asked[id(container)][1]


def _look_at(container: Any) -> Records | None:
    values = container.copy()  # a thread of the program may change it meanwhile
    first = next(iter(values), None)
    mark = _refused.get(id(container))
    is_refused = mark() is container if isinstance(mark, weakref.ref) else mark == id(first)
    if is_refused:
        return None
    seen = _lists.get(id(container))
    if seen is None or seen.container is not container:
        seen = _List(container)
        values = values if seen.may_hold(first) else ()
    records = seen.look(list(values)) if values else None
    if records is not None:
        _remember(seen)
        return records
    _lists.pop(id(container), None)
    is_deque = isinstance(container, collections.deque)
    _refused[id(container)] = weakref.ref(container) if is_deque else id(first)
    if len(_refused) > _MOST_REFUSED:
        _refused.popitem(last=False)
    return None


def records_from(layouts: Sequence[Any], packed: torch.Tensor, *, like: Any = None) -> list[Any]:
    """The records that ``Records`` describes.

    Args:
        layouts: Of what kinds they are.
        packed: See ``Records``.
        like: The list that is to hold them: what it holds already is not made again, and what it
            will hold is not packed again.

    Raises:
        ValueError: They do not parse, or their class is another one here.
    """
    kinds = list(map(_layout_from, layouts))
    readers = [_reader_of(layout) for layout in kinds]
    seen = _lists.get(id(like))
    if seen is None or seen.container is not like or not seen.has_layouts(kinds):
        seen = _List(like)
    known = {record.packed: record for record in seen.records()}
    found: list[_Record] = []
    data, at = bytes(bytes_of(packed)), 0
    while at < len(data):
        number = int.from_bytes(data[at : at + 2], "little")
        if number >= len(readers):
            raise ValueError(f"records of {len(readers)} kinds hold one of kind {number}")
        size, read = readers[number]
        piece = data[at : at + 2 + size]
        if len(piece) < 2 + size:
            raise ValueError(f"a record of {size} bytes ends after {len(piece) - 2}")
        found.append(known.pop(piece) if piece in known else _record_of(read(piece[2:]), piece))
        at += len(piece)
    if type(like) in _LISTS:
        seen.adopt(kinds, found)
        _remember(seen)
    return [record.value for record in found]


def _told(layout: _Layout) -> list[Any]:
    name, kinds = layout
    return [name, [[*kind[:2], *map(list, kind[2:])] for kind in kinds]]


def _layout_from(told: Any) -> _Layout:
    name, kinds = told
    return name, tuple((*kind[:2], *map(tuple, kind[2:])) for kind in kinds)


def _fields_of(value: Any) -> Sequence[Any] | None:
    if value is None:
        return ()
    is_own = isinstance(value, tuple) and type(value) is not tuple
    return fields_of(value) if is_own else value if type(value) is tuple else None


def _record_of(value: Any, packed: bytes) -> _Record:
    fields = _fields_of(value) or ()
    tensors = [each for each in fields if isinstance(each, torch.Tensor)]
    arrays = [each for each in fields if isinstance(each, np.ndarray)]
    versions = sum(map(_version_of, tensors))
    return _Record(value, packed, tensors, versions, arrays, _bytes_of(arrays))


def _bytes_of(arrays: list[np.ndarray[Any, Any]]) -> bytes:
    return b"".join(each.tobytes() for each in arrays)


def _remember(seen: _List) -> None:
    _lists[id(seen.container)] = seen
    if len(_lists) > _MOST_LISTS:
        _lists.popitem(last=False)


_MAKERS: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "tuple": tuple,
    "none": lambda _: None,
}


def _reader_of(layout: Any) -> tuple[int, Callable[[bytes], Any]]:
    """How many bytes a record of a layout takes, and what makes one of them."""
    name, kinds = layout
    parts = [reader_of_field(kind) for kind in kinds]
    ends = list(itertools.accumulate(size for size, _ in parts))
    make_record = _MAKERS[name] if name in _MAKERS else partial(rebuilt, of_name(name))

    def read(data: bytes) -> Any:
        return make_record(
            [make(data[end - size : end]) for end, (size, make) in zip(ends, parts, strict=True)]
        )

    return (ends[-1] if ends else 0), read
