"""The course of a program through its calls of ``session.steps`` and ``session.between_steps``.

Every rank keeps one. A joiner compares its own with the place of the job and is told, each time its
program asks for a step, how to get nearer: end this call, run one more step, or take over here.
Pure: no I/O, no clock, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from trainmover_executor.position.position import EndedCall, Place, Position, Returned

__all__ = [
    "Course",
    "EndCall",
    "Level",
    "Lost",
    "OneMoreStep",
    "Stay",
    "TakeOver",
    "Way",
    "place_of_vote",
    "still_open",
    "way_to",
]


@dataclass(slots=True, eq=False)
class Level:
    """One call of ``session.steps`` that has begun; the program as a whole is the lowest level.

    Attributes:
        ordinal: Which call, from 1, since the program began or since the last step around it.
        drawn: Steps it has given to the program.
        ended: Calls that ended inside of its last step, or in the program.
        results: What ``between_steps`` returned since its last step, before any of these.
    """

    ordinal: int
    drawn: int = 0
    ended: list[EndedCall] = field(default_factory=list)
    results: list[Returned] = field(default_factory=list)


class Course:
    """Where one process is in its program.

    Attributes:
        levels: The program, then each call that has begun and not ended.
    """

    def __init__(self) -> None:
        self.levels: list[Level] = [Level(ordinal=1)]

    def begin(self) -> Level:
        """A call of ``session.steps`` begins inside of the innermost open one."""
        level = Level(ordinal=len(self.levels[-1].ended) + 1)
        self.levels.append(level)
        return level

    def draw(self, level: Level) -> None:
        """A call gives a step to the program."""
        level.drawn += 1
        level.ended.clear()
        level.results.clear()

    def end(
        self,
        level: Level,
        *,
        committed: int,
        variables: dict[str, Any],
        rng: dict[str, Any] | None = None,
        left_at: Position | None = None,
    ) -> None:
        """A call ended, and with it all calls inside of it.

        Args:
            level: The call.
            committed: Steps that the job had completed.
            variables: The program's variables when the data was used up.
            rng: Random generators then.
            left_at: The last vote, where the program left the loop before.
        """
        if level not in self.levels:
            return
        at = self.levels.index(level)
        del self.levels[at:]
        inside = list(level.results)
        ended = EndedCall(level.drawn, committed, False, variables, inside=inside, rng=rng or {})
        if left_at is not None:
            ended = replace(
                ended,
                left=True,
                variables=left_at.variables,
                at_end=left_at.at_end,
                given=left_at.given,
            )
        earlier = self.levels[-1].ended
        if earlier:
            earlier[-1] = replace(earlier[-1], rng={})
        earlier.append(ended)

    @property
    def results(self) -> list[Returned]:
        """What ``between_steps`` returned since the last step, or the last end of a call."""
        innermost = self.levels[-1]
        return innermost.ended[-1].results if innermost.ended else innermost.results

    @property
    def open(self) -> list[list[int]]:
        """See ``Place.open``."""
        return [[level.ordinal, level.drawn] for level in self.levels[1:]]

    def place(self, *, committed: int, between: bool) -> Place:
        """Where this process is, for others.

        Args:
            committed: Steps completed by the job.
            between: In ``between_steps``; else in front of the next step.
        """
        return Place(
            open=self.open,
            ended=[list(level.ended) for level in self.levels],
            committed=committed,
            between=len(self.results) + 1 if between else 0,
            results=list(self.results),
        )

    def adopt(self, place: Place) -> None:
        """Stand where the job stands; the same calls are open here."""
        for level, ended in zip(self.levels, place.ended, strict=True):
            level.ended = list(ended)
        for level, (_, drawn) in zip(self.levels[1:], place.open, strict=True):
            level.drawn = drawn
        self.results[:] = place.results


@dataclass(frozen=True, slots=True)
class EndCall:
    """End the innermost call: the job's has ended."""

    ended: EndedCall


@dataclass(frozen=True, slots=True)
class OneMoreStep:
    """Run the program from the vote of the job's last step on: it stands behind that.

    Attributes:
        drawn: Steps that the innermost call of the job has given to its program.
    """

    drawn: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The job stands here."""


@dataclass(frozen=True, slots=True)
class Stay:
    """In ``between_steps``: the job has passed it; this is what it returned, if that is told."""

    returned: Returned | None


@dataclass(frozen=True, slots=True)
class Lost:
    """This program went another way than the job."""

    reason: str


Way = EndCall | OneMoreStep | TakeOver | Stay | Lost


def way_to(place: Place, course: Course, *, between: bool) -> Way:
    """How a joiner gets from where its program is to where the job is.

    Args:
        place: Where the job is.
        course: Where the joiner is.
        between: The joiner's program asks for ``between_steps``; else for the next step.
    """
    depth, levels = _common(place, course)
    if depth < len(levels):
        return _leave(place, levels, depth, between=between)
    if between:
        return _between(place, course)
    if len(place.open) == depth and not place.between:
        return TakeOver()
    if depth and levels[-1].drawn < place.open[depth - 1][1]:
        return OneMoreStep(drawn=place.open[depth - 1][1])
    return Lost("the program came back for a step without passing where the job stands")


def place_of_vote(then: list[list[int]], place: Place) -> Place:
    """Where the job stood at its last vote.

    Args:
        then: The calls that were open.
        place: Where it stands now.
    """
    same = _alike(then, place.open)
    ended = [place.ended[depth] if depth <= same else [] for depth in range(len(then) + 1)]
    return Place(open=then, ended=ended, committed=place.committed, between=0, results=[])


def still_open(then: list[list[int]], place: Place) -> int:
    """How many of the calls that were open at the last vote are open now, outermost first."""
    same = _alike(then, place.open)
    if same == min(len(then), len(place.open)):
        return same
    return same + (then[same][0] == place.open[same][0])


def _alike(then: list[list[int]], now: list[list[int]]) -> int:
    """How many calls are the same ones, and have given as many steps."""
    alike = 0
    for one, other in zip(then, now, strict=False):
        if one != other:
            break
        alike += 1
    return alike


def _common(place: Place, course: Course) -> tuple[int, list[Level]]:
    """How many of the joiner's open calls the job has open, too, and the joiner's."""
    levels = course.levels[1:]
    depth = 0
    for level, (ordinal, _) in zip(levels, place.open, strict=False):
        if level.ordinal != ordinal:
            break
        depth += 1
    return depth, levels


def _leave(place: Place, levels: list[Level], depth: int, *, between: bool) -> Way:
    if depth < len(levels) - 1:
        return Lost("the job is in an outer loop, and this program in an inner one")
    ended, ordinal = place.ended[depth], levels[depth].ordinal
    if ordinal > len(ended):
        return Lost(
            f"this program is in call {ordinal} of session.steps(), the job has ended "
            f"{len(ended)} of them"
        )
    call = ended[ordinal - 1]
    if between:
        mine = levels[depth]
        last = mine.drawn == call.drawn and not mine.ended
        return Stay(_nth(call.inside, len(mine.results)) if last else None)
    return EndCall(call)


def _between(place: Place, course: Course) -> Way:
    depth = len(course.levels) - 1
    mine, innermost = course.results, course.levels[-1]
    passed = len(innermost.ended)
    inside = depth == 0 or innermost.drawn == place.open[depth - 1][1]
    if inside and passed > len(place.ended[depth]):
        return Lost("this program has passed calls of session.steps() that the job has not")
    if inside and passed == len(place.ended[depth]) and depth == len(place.open):
        if place.between == len(mine) + 1:
            return TakeOver()
        return Stay(_nth(place.results, len(mine)))
    if inside and 0 < passed <= len(place.ended[depth]):
        return Stay(_nth(place.ended[depth][passed - 1].results, len(mine)))
    return Stay(None)


def _nth(values: list[Returned], index: int) -> Returned | None:
    return values[index] if index < len(values) else None
