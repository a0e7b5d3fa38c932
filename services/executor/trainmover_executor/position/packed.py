"""A list of portable trees, the old ones packed in groups.

Where a rank stands is told at almost every step, and what has happened on its way there only grows.
So the old part is packed once, into blobs that a listener needs to be sent once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

__all__ = ["Blob", "Blobs", "Group", "PackedList", "Packing"]

_GROUP: Final = 4
"""So many trees become a group,"""
_GROUPS: Final = 8
"""and so many groups of one size a larger one,"""
_LARGEST_GROUP: Final = 256
"""but none larger than this: whoever needs a tree unpacks its group."""
_FORGOTTEN: Final = 64
"""So many are forgotten together: their groups are packed again."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A portable tree that was packed once.

    Attributes:
        digest: Of its bytes: blobs of the same digest are the same.
        nbytes: How many.
        data: Them, as a portable tree.
    """

    digest: str
    nbytes: int
    data: Any = field(compare=False, repr=False)

    def to_tree(self, blobs: Blobs) -> str:
        """Its digest; ``blobs`` comes to hold the rest."""
        blobs[self.digest] = [self.nbytes, self.data]
        return self.digest

    @staticmethod
    def from_tree(digest: str, blobs: Mapping[str, Any]) -> Blob:
        """From what ``to_tree`` returned."""
        return Blob(digest, *blobs[digest])


Blobs = dict[str, Any]
"""What trees refer to, by digest."""


class Packing(Protocol):
    """Packs portable trees."""

    def pack(self, tree: Any, *, compress: bool = True) -> Blob:
        """Pack ``tree``; compressed, where there may be much that is alike in it."""

    def unpack(self, blob: Blob) -> Any:
        """What ``pack`` packed; nobody changes it."""

    def lasts(self, variable: Any) -> bool:
        """Whether a variable of the program, as a tree, tells anything once it has moved on."""


@dataclass(frozen=True, slots=True)
class Group:
    """Successive trees, packed.

    Attributes:
        count: How many.
        blob: A list of them; None where each of them is empty.
    """

    count: int
    blob: Blob | None

    @staticmethod
    def of(trees: Sequence[Any], packing: Packing) -> Group:
        """Pack ``trees``."""
        return Group(len(trees), packing.pack(list(trees)) if any(trees) else None)

    def trees(self, packing: Packing) -> list[Any]:
        """Them; nobody changes these."""
        return [[]] * self.count if self.blob is None else packing.unpack(self.blob)


@dataclass(slots=True)
class PackedList:
    """Portable trees that nobody changes, the oldest first.

    Attributes:
        groups: The old ones.
        recent: Those behind them.
        forgotten: Of these nothing is to be held.
    """

    groups: list[Group] = field(default_factory=list)
    recent: list[Any] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return sum(group.count for group in self.groups) + len(self.recent)

    def nth(self, index: int, *, packing: Packing) -> Any:
        """Tree ``index``, from 0."""
        for group in self.groups:
            if index < group.count:
                return group.trees(packing)[index]
            index -= group.count
        return self.recent[index]

    def append(self, tree: Any, *, packing: Packing) -> None:
        """Add ``tree`` at the end."""
        self.recent.append(tree)
        if len(self.recent) == _GROUP:
            self.groups.append(Group.of(self.recent, packing))
            self.recent.clear()
            self._gather(packing)

    def forget(self, index: int, *, packing: Packing) -> None:
        """Nobody needs tree ``index`` any more: an empty list stands for it, sooner or later."""
        self.forgotten.add(index)
        if len(self.forgotten) == _FORGOTTEN:
            self._drop(packing)
            self.forgotten.clear()

    def _drop(self, packing: Packing) -> None:
        """Hold nothing of what is forgotten; groups of nothing become one."""
        first, kept = min(self.forgotten), list[Group]()
        start = len(self) - len(self.recent)
        for at in range(len(self.recent)):
            if start + at in self.forgotten:
                self.recent[at] = []
        while self.groups and start > first:
            group = self.groups.pop()
            start -= group.count
            gone = [start + at in self.forgotten for at in range(group.count)]
            if any(gone) and group.blob is not None:
                trees = zip(gone, group.trees(packing), strict=True)
                group = Group.of([[] if over else tree for over, tree in trees], packing)
            kept.append(group)
        for group in reversed(kept):
            last = self.groups[-1] if self.groups else None
            if last is not None and last.blob is None and group.blob is None:
                self.groups[-1] = Group(last.count + group.count, None)
            else:
                self.groups.append(group)

    def _gather(self, packing: Packing) -> None:
        """Make the last groups a larger one, as long as they are many of one size."""
        while True:
            last = self.groups[-_GROUPS:]
            total = last[0].count * _GROUPS
            if total > _LARGEST_GROUP or sum(group.count for group in last) != total:
                return
            trees = [tree for group in last for tree in group.trees(packing)]
            self.groups[-_GROUPS:] = [Group.of(trees, packing)]

    def replaced(self, others: Mapping[int, Any], *, packing: Packing) -> PackedList:
        """The same with ``others`` at their indices."""
        groups, start = [], 0
        for group in self.groups:
            indices = range(start, start := start + group.count)
            if any(index in others for index in indices):
                trees = zip(indices, group.trees(packing), strict=True)
                changed = [others.get(index, tree) for index, tree in trees]
                group = Group.of(changed, packing)  # noqa: PLW2901 - another one
            groups.append(group)
        recent = [others.get(index, tree) for index, tree in enumerate(self.recent, start)]
        return PackedList(groups, recent)

    def copy(self) -> PackedList:
        """One that does not grow with this one."""
        return PackedList(list(self.groups), list(self.recent), set(self.forgotten))

    def to_tree(self, blobs: Blobs) -> list[Any]:
        """As a portable tree that refers to ``blobs``, which come to hold its own."""
        groups = [[group.count, group.blob and group.blob.to_tree(blobs)] for group in self.groups]
        return [groups, list(self.recent)]

    @staticmethod
    def from_tree(tree: list[Any], blobs: Mapping[str, Any]) -> PackedList:
        """From a portable tree and the blobs that it refers to."""
        groups, recent = tree
        return PackedList(
            [Group(n, digest and Blob.from_tree(digest, blobs)) for n, digest in groups], recent
        )
