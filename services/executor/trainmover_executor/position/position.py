"""Where a rank is in its program, its data and its random numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from trainmover_executor.position.ended import EndedCalls
from trainmover_executor.position.packed import Blobs
from trainmover_executor.position.results import Results, Returned

__all__ = ["Place", "Position", "WorkDone"]


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
        settings: See ``TrainingState.settings``. Empty where they are those of the state.
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
        blobs: Blobs = {}
        returned = self.returned.to_tree(blobs)
        return {"returned": returned, "position": self.position.to_tree(), "blobs": blobs}

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> WorkDone:
        """From a portable tree."""
        returned = Returned.from_tree(tree["returned"], tree["blobs"])
        return WorkDone(returned, Position.from_tree(tree["position"]))


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
        results: The work between steps before that one, by ordinal.
        returned: What all work returned.
    """

    open: list[list[int]]
    ended: list[EndedCalls]
    committed: int
    between: int
    results: list[int] = field(default_factory=list)
    returned: Results = field(default_factory=Results)

    def to_tree(self) -> dict[str, Any]:
        """As a portable tree; its ``blobs`` are what a listener may know from an earlier one."""
        blobs: Blobs = {}
        return {
            "open": self.open,
            "ended": [level.to_tree(blobs) for level in self.ended],
            "committed": self.committed,
            "between": self.between,
            "results": list(self.results),
            "returned": self.returned.to_tree(blobs),
            "blobs": blobs,
        }

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> Place:
        """From a portable tree; the release before knew no ``blobs``, and told less of results."""
        blobs = tree.get("blobs", {})
        return Place(
            open=tree["open"],
            ended=[EndedCalls.from_tree(level, blobs) for level in tree["ended"]],
            committed=tree["committed"],
            between=tree["between"],
            results=tree["results"],
            returned=Results.from_tree(tree.get("returned", [[[], []], []]), blobs),
        )


_POSITION: Final = (
    *("feeds", "rng", "buffers", "variables", "gradients"),
    *("at_end", "settings", "open", "given"),
)
