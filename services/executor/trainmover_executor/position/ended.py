"""The calls of ``session.steps`` that have ended: a joiner's program passes each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trainmover_executor.position.packed import Blobs, PackedList, Packing

__all__ = ["EndedCall", "EndedCalls"]


@dataclass(frozen=True, slots=True)
class EndedCall:
    """How a call of ``session.steps`` ended, for a joiner that comes after it.

    Attributes:
        drawn: Steps that it gave to the program.
        committed: Steps that the job had completed.
        left: Whether the program left the loop before the data was used up.
        variables: The program's variables when the data was used up; at the last vote, where the
            loop was left.
        inside: The work between steps behind its last step, in order; see ``Place.results``.
        results: The same after the call.
        at_end: Where the loop was left: whether that vote was cast at the end of the body.
        given: Where the loop was left: variables that were others when its last step was given.
        rng: Random generators when the data was used up.
    """

    drawn: int
    committed: int
    left: bool
    variables: dict[str, Any]
    inside: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    at_end: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    rng: dict[str, Any] = field(default_factory=dict)

    @property
    def variables_when_given(self) -> dict[str, Any]:
        """Where the loop was left: the program's variables when it was given the last step."""
        return {**self.variables, **self.given}

    def aged(self, *, packing: Packing) -> EndedCall:
        """The same once a later call has ended: what was drawn behind it has been used."""
        variables, given = (
            {path: tree for path, tree in values.items() if packing.lasts(tree)}
            for values in (self.variables, self.given)
        )
        return replace(self, variables=variables, given=given, rng={})

    def to_tree(self) -> dict[str, Any]:
        """As a portable tree."""
        tree = {name: getattr(self, name) for name in _ENDED}
        return {**tree, "inside": list(self.inside), "results": list(self.results)}

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> EndedCall:
        """From a portable tree."""
        return EndedCall(**{name: tree[name] for name in _ENDED})


@dataclass(slots=True)
class EndedCalls:
    """Those of one level, the oldest first.

    Attributes:
        newest: The one that ended last.
        others: Those before it, as trees.
    """

    newest: EndedCall | None = None
    others: PackedList = field(default_factory=PackedList)

    def __len__(self) -> int:
        return len(self.others) + (self.newest is not None)

    def nth(self, index: int, *, packing: Packing) -> EndedCall:
        """Call ``index``, from 0."""
        if self.newest is not None and index == len(self.others):
            return self.newest
        return EndedCall.from_tree(self.others.nth(index, packing=packing))

    def add(self, call: EndedCall, *, packing: Packing) -> None:
        """One more has ended."""
        if self.newest is not None:
            self.others.append(self.newest.aged(packing=packing).to_tree(), packing=packing)
        self.newest = call

    def copy(self) -> EndedCalls:
        """One to which no calls are added."""
        return EndedCalls(self.newest, self.others.copy())

    def to_tree(self, blobs: Blobs) -> list[Any]:
        """As a portable tree that refers to ``blobs``, which come to hold its own."""
        if self.newest is None:
            return []
        return [self.newest.to_tree(), self.others.to_tree(blobs)]

    @staticmethod
    def from_tree(tree: list[Any], blobs: Mapping[str, Any]) -> EndedCalls:
        """From a portable tree and the blobs that it refers to."""
        if not tree:
            return EndedCalls()
        newest, others = tree
        return EndedCalls(EndedCall.from_tree(newest), PackedList.from_tree(others, blobs))


_ENDED: Final = (
    *("drawn", "committed", "left", "variables", "inside", "results", "at_end", "given"),
    "rng",
)
