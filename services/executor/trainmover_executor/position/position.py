"""Where a rank is in its program, its data and its random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

__all__ = ["EndedCall", "Place", "Position", "Returned", "WorkDone"]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is, apart from parameters: what no other rank knows.

    Attributes:
        feeds: Position in the data of each open call of ``session.steps``, the outermost first;
            None where the call has given no step.
        rng: Random generators.
        buffers: (index, value) of the module buffers that training changes.
        variables: The program's own variables that changed, by path.
        gradients: Fingerprint of the gradients, where they belong to the state (see
            ``Moment.accumulates``); else None.
        at_end: At a vote: whether it was cast at the end of the body.
        settings: At a vote: see ``TrainingState.settings``.
        open: At a vote, and behind work between steps: the open calls, as in ``Place.open``.
        given: At a vote: variables that were others when the program was given the step.
    """

    feeds: list[dict[str, Any] | None]
    rng: dict[str, Any]
    buffers: list[list[Any]]
    variables: dict[str, Any]
    gradients: int | None = None
    at_end: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    open: list[list[int]] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def variables_when_given(self) -> dict[str, Any]:
        """The program's variables when it was given the step of this vote."""
        return {**self.variables, **self.given}

    def to_tree(self) -> dict[str, Any]:
        """As a portable tree."""
        return {name: getattr(self, name) for name in _POSITION}

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> Position:
        """From a portable tree."""
        return Position(**{name: tree[name] for name in _POSITION})


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call of ``session.between_steps`` returned at one rank.

    Attributes:
        ordinal: Pieces of work between steps that the job had completed with it.
        value: What it returned; None where that cannot be carried.
    """

    ordinal: int
    value: Any

    def to_tree(self) -> list[Any]:
        """As a portable tree."""
        return [self.ordinal, self.value]


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Work between steps that all ranks have done, at one of them.

    Attributes:
        returned: What it returned.
        position: Where the rank was then.
    """

    returned: Returned
    position: Position

    def to_tree(self) -> dict[str, Any]:
        """As a portable tree."""
        return {"returned": self.returned.to_tree(), "position": self.position.to_tree()}

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> WorkDone:
        """From a portable tree."""
        return WorkDone(Returned(*tree["returned"]), Position.from_tree(tree["position"]))


@dataclass(frozen=True, slots=True)
class EndedCall:
    """How a call of ``session.steps`` ended, for a joiner that comes after it.

    Attributes:
        drawn: Steps that it gave to the program.
        committed: Steps that the job had completed.
        left: Whether the program left the loop before the data was used up.
        variables: The program's variables when the data was used up; at the last vote, where the
            loop was left.
        inside: What ``between_steps`` returned behind its last step, in order.
        results: What it returned after the call.
        at_end: Where the loop was left: whether that vote was cast at the end of the body.
        given: Where the loop was left: variables that were others when its last step was given.
        rng: Random generators when the data was used up, of the call of its level that ended last;
            what was drawn behind others has been used.
    """

    drawn: int
    committed: int
    left: bool
    variables: dict[str, Any]
    inside: list[Returned] = field(default_factory=list)
    results: list[Returned] = field(default_factory=list)
    at_end: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    rng: dict[str, Any] = field(default_factory=dict)

    @property
    def variables_when_given(self) -> dict[str, Any]:
        """Where the loop was left: the program's variables when it was given the last step."""
        return {**self.variables, **self.given}

    def to_tree(self) -> dict[str, Any]:
        """As a portable tree."""
        tree = {name: getattr(self, name) for name in _ENDED}
        return {**tree, **{name: _to_trees(tree[name]) for name in _RESULTS}}

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> EndedCall:
        """From a portable tree."""
        return EndedCall(**{**tree, **{name: _from_trees(tree[name]) for name in _RESULTS}})


@dataclass(frozen=True, slots=True)
class Place:
    """Where all ranks of the job stand in the program: the same for each of them.

    Attributes:
        open: (ordinal, steps drawn) of each call of ``session.steps`` that has begun and not
            ended, the outermost first. The ordinal counts from 1 since the program began, for an
            inner call since the last step of the call around it.
        ended: The calls before them that have ended: one list for the program, and one for each
            open call.
        committed: Steps completed by the job.
        between: Which ``session.between_steps`` since the last step, or since the last call ended,
            from 1; 0 when they stand in front of the next step.
        results: What those before it returned.
    """

    open: list[list[int]]
    ended: list[list[EndedCall]]
    committed: int
    between: int
    results: list[Returned]

    def to_tree(self) -> dict[str, Any]:
        """As a portable tree."""
        tree = {name: getattr(self, name) for name in _PLACE}
        ended = [[one.to_tree() for one in level] for level in self.ended]
        return {**tree, "ended": ended, "results": _to_trees(self.results)}

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> Place:
        """From a portable tree."""
        ended = [[EndedCall.from_tree(one) for one in level] for level in tree["ended"]]
        known = {name: tree[name] for name in _PLACE}
        return Place(**{**known, "ended": ended, "results": _from_trees(tree["results"])})

    def returning(self, values: Mapping[int, Returned]) -> Place:
        """The same with what another rank's work returned, by ordinal, as far as that is known."""

        def others(results: list[Returned]) -> list[Returned]:
            return [values.get(one.ordinal, one) for one in results]

        ended = [
            [replace(one, inside=others(one.inside), results=others(one.results)) for one in level]
            for level in self.ended
        ]
        return replace(self, ended=ended, results=others(self.results))


def _to_trees(results: list[Returned]) -> list[list[Any]]:
    return [one.to_tree() for one in results]


def _from_trees(trees: list[list[Any]]) -> list[Returned]:
    return [Returned(*tree) for tree in trees]


_POSITION: Final = (
    *("feeds", "rng", "buffers", "variables", "gradients"),
    *("at_end", "settings", "open", "given"),
)
_ENDED: Final = (
    *("drawn", "committed", "left", "variables", "inside", "results", "at_end", "given"),
    "rng",
)
_RESULTS: Final = ("inside", "results")
_PLACE: Final = ("open", "ended", "committed", "between", "results")
