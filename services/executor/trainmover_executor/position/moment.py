"""What a rank knows of a point between two steps: enough for another process to go on from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainmover_executor.position.placement import Placement
from trainmover_executor.position.position import Place, Position, WorkDone

__all__ = ["Moment"]


@dataclass(frozen=True, slots=True)
class Moment:
    """A point between two steps.

    Attributes:
        position: What only this rank knows.
        place: Where all ranks stand.
        placement: What was seen that decides where votes are.
        votes_at_end: Whether the next one is at the end of the body.
        accumulates: Gradients are part of the state: bodies since the last step of an optimizer
            accumulated them.
        voted: The same at the last vote, from where a joiner runs the code behind it.
        passed: The work between steps that was done since, in front of the body of the next step.
            A joiner that comes here is told of it, and does not do it again.
        large: What is large of the program's variables, by its prints: live tensors.
        written: Parameters that the program wrote to since the vote, where another rank follows
            them: checksums of their beginnings, by name.
        held: Whether the rank has begun the body of the next step: the code in front of it has run.
    """

    position: Position
    place: Place
    placement: Placement
    votes_at_end: bool
    accumulates: bool
    voted: Position
    passed: list[WorkDone] = field(default_factory=list)
    large: dict[str, Any] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    held: bool = False

    def common(self) -> dict[str, Any]:
        """What is the same at all ranks, and ``held`` of this one, as a portable tree."""
        return {
            "place": self.place.to_tree(),
            "placement": self.placement.to_tree(),
            "votes_at_end": self.votes_at_end,
            "accumulates": self.accumulates,
            "passed": [work.to_tree() for work in self.passed],
            "held": self.held,
        }

    def to_tree(self) -> dict[str, Any]:
        """All of it, as a portable tree that nobody changes."""
        position = self.position.to_tree()
        position["buffers"] = [[index, value.clone()] for index, value in self.position.buffers]
        return {**self.common(), "position": position, "written": self.written}

    @staticmethod
    def from_trees(common: dict[str, Any], position: dict[str, Any], *, voted: Position) -> Moment:
        """From what ``common`` and ``Position.to_tree`` returned."""
        return Moment(
            position=Position.from_tree(position),
            place=Place.from_tree(common["place"]),
            placement=Placement.from_tree(common["placement"]),
            votes_at_end=common["votes_at_end"],
            accumulates=common["accumulates"],
            voted=voted,
            passed=[WorkDone.from_tree(work) for work in common["passed"]],
        )
