"""What work between steps returned, for a joiner whose program passes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trainmover_executor.position.packed import Blob, Blobs, PackedList, Packing

__all__ = ["Results", "Returned"]

_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of large results that are kept,"""
_FEW: Final = 8
"""unless there are no more of them than these."""


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call of ``session.between_steps`` returned at one rank.

    Attributes:
        ordinal: Pieces of work between steps that the job had completed with it.
        value: What it returned, as a portable tree; None where that cannot be carried. A blob
            where it is large.
    """

    ordinal: int
    value: Any

    def to_tree(self, blobs: Blobs) -> list[Any]:
        """As a portable tree that refers to ``blobs``, which come to hold its own."""
        if isinstance(self.value, Blob):
            return [self.ordinal, None, self.value.to_tree(blobs)]
        return [self.ordinal, self.value]

    @staticmethod
    def from_tree(tree: list[Any], blobs: Mapping[str, Any]) -> Returned:
        """From a portable tree and the blobs that it refers to."""
        ordinal, value, *digests = tree
        return Returned(ordinal, Blob.from_tree(digests[0], blobs) if digests else value)


@dataclass(slots=True)
class Results:
    """All that is known of what work returned.

    Attributes:
        small: By ordinal, from 1: ``[value]``; ``[]`` of what is not here.
        large: The newest of those that are large, by ordinal.
    """

    small: PackedList = field(default_factory=PackedList)
    large: dict[int, Blob] = field(default_factory=dict)

    def add(self, returned: Returned, *, packing: Packing) -> None:
        """One more piece of work is done; of one that is known, nothing changes."""
        if returned.ordinal <= len(self.small):
            return
        while len(self.small) < returned.ordinal - 1:
            self.small.append([], packing=packing)
        is_large = isinstance(returned.value, Blob)
        self.small.append([] if is_large else [returned.value], packing=packing)
        if is_large:
            self.large[returned.ordinal] = returned.value
            nbytes = sum(blob.nbytes for blob in self.large.values())
            for oldest in list(self.large)[:-_FEW]:
                if nbytes <= _MOST_BYTES:
                    break
                nbytes -= self.large.pop(oldest).nbytes

    def forget(self, ordinals: Iterable[int], *, packing: Packing) -> None:
        """Nobody will ask what these returned; those that are large are few anyway."""
        for ordinal in ordinals:
            self.small.forget(ordinal - 1, packing=packing)

    def of(self, ordinal: int, *, packing: Packing) -> Returned | None:
        """What work ``ordinal`` returned, if that is here."""
        if ordinal in self.large:
            return Returned(ordinal, self.large[ordinal])
        if not 0 < ordinal <= len(self.small):
            return None
        item = self.small.nth(ordinal - 1, packing=packing)
        return Returned(ordinal, item[0]) if item else None

    def replaced(self, others: Mapping[int, Returned], *, packing: Packing) -> Results:
        """The same with what work returned at another rank, as far as that is known."""
        known = {ordinal: one.value for ordinal, one in others.items()}
        small = {
            ordinal - 1: [] if isinstance(value, Blob) else [value]
            for ordinal, value in known.items()
        }
        large = {ordinal: known.get(ordinal, blob) for ordinal, blob in self.large.items()}
        large |= {ordinal: value for ordinal, value in known.items() if ordinal <= len(self.small)}
        return Results(
            self.small.replaced(small, packing=packing),
            {n: large[n] for n in sorted(large) if isinstance(large[n], Blob)},
        )

    def copy(self) -> Results:
        """One to which nothing is added."""
        return Results(self.small.copy(), dict(self.large))

    def to_tree(self, blobs: Blobs) -> list[Any]:
        """As a portable tree that refers to ``blobs``, which come to hold its own."""
        large = [[ordinal, blob.to_tree(blobs)] for ordinal, blob in self.large.items()]
        return [self.small.to_tree(blobs), large]

    @staticmethod
    def from_tree(tree: list[Any], blobs: Mapping[str, Any]) -> Results:
        """From a portable tree and the blobs that it refers to."""
        small, large = tree
        return Results(
            PackedList.from_tree(small, blobs),
            {ordinal: Blob.from_tree(digest, blobs) for ordinal, digest in large},
        )
