"""The course of a program through its calls of ``session.steps`` and ``session.between_steps``.

Every rank keeps one. A joiner compares its own with the place of the job and is told, each time its
program asks for a step, how to get nearer: end this call, run one more step, or take over here.
Pure: no I/O, no clock, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from trainmover_executor.position.ended import EndedCall, EndedCalls
from trainmover_executor.position.packed import Packing
from trainmover_executor.position.position import Place, Position
from trainmover_executor.position.results import Results, Returned

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
        results: Work between steps since its last step, before any of these; by ordinal.
        before: Likewise, of the step before that.
    """

    ordinal: int
    drawn: int = 0
    ended: EndedCalls = field(default_factory=EndedCalls)
    results: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


class Course:
    """Where one process is in its program.

    Attributes:
        packing: Of what is old.
        levels: The program, then each call that has begun and not ended.
        returned: What work between steps returned.
    """

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self.levels: list[Level] = [Level(ordinal=1)]
        self.returned = Results()

    def begin(self) -> Level:
        """A call of ``session.steps`` begins inside of the innermost open one."""
        level = Level(ordinal=len(self.levels[-1].ended) + 1)
        self.levels.append(level)
        return level

    def draw(self, level: Level) -> None:
        """A call gives a step to the program.

        Nobody passes work behind a step that is not the last one of its call, except a joiner that
        takes the place of a rank that died there.
        """
        self.returned.forget(level.before, packing=self.packing)
        level.drawn += 1
        level.ended = EndedCalls()
        level.before, level.results = level.results, []

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
        self.levels[-1].ended.add(ended, packing=self.packing)

    def work(self, returned: Returned) -> None:
        """Work between steps is done."""
        self.results.append(returned.ordinal)
        self.returned.add(returned, packing=self.packing)

    @property
    def results(self) -> list[int]:
        """Work between steps since the last step, or the last end of a call; by ordinal."""
        innermost = self.levels[-1]
        newest = innermost.ended.newest
        return innermost.results if newest is None else newest.results

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
            ended=[level.ended.copy() for level in self.levels],
            committed=committed,
            between=len(self.results) + 1 if between else 0,
            results=list(self.results),
            returned=self.returned.copy(),
        )

    def adopt(self, place: Place) -> None:
        """Stand where the job stands; the same calls are open here."""
        for level, ended in zip(self.levels, place.ended, strict=True):
            level.ended = ended.copy()
        for level, (_, drawn) in zip(self.levels[1:], place.open, strict=True):
            level.drawn = drawn
        self.results[:] = place.results
        self.returned = place.returned.copy()


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
    """In ``between_steps``: the job has passed it; this is what it returned, if that is told.

    Where a large result is too old to be kept, a newer one stands for it: the program's values have
    no consequences there, but have to be of the kind that it expects.
    """

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
        return _leave(place, course, depth, between=between)
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
    ended = [
        place.ended[depth] if depth <= same else EndedCalls() for depth in range(len(then) + 1)
    ]
    return replace(place, open=then, ended=ended, between=0, results=[])


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


def _leave(place: Place, course: Course, depth: int, *, between: bool) -> Way:
    levels = course.levels[1:]
    if depth < len(levels) - 1:
        return Lost("the job is in an outer loop, and this program in an inner one")
    ended, ordinal = place.ended[depth], levels[depth].ordinal
    if ordinal > len(ended):
        return Lost(
            f"this program is in call {ordinal} of session.steps(), the job has ended "
            f"{len(ended)} of them"
        )
    call = ended.nth(ordinal - 1, packing=course.packing)
    if between:
        mine, newest = levels[depth], ended.newest
        if mine.drawn != call.drawn or len(mine.ended):
            return Stay(None)
        alike = [] if newest is None else [newest.inside]
        return _stay(place, course, call.inside, index=len(mine.results), alike=alike)
    return EndCall(call)


def _between(place: Place, course: Course) -> Way:
    depth = len(course.levels) - 1
    index, innermost = len(course.results), course.levels[-1]
    passed = len(innermost.ended)
    inside = depth == 0 or innermost.drawn == place.open[depth - 1][1]
    if not inside:
        return Stay(None)
    ended = place.ended[depth]
    is_open = depth < len(place.open) and place.open[depth][0] <= passed
    if passed > len(ended) or is_open:
        return Lost("this program has passed calls of session.steps() that the job has not")
    if passed == len(ended) and depth == len(place.open):
        if place.between == index + 1:
            return TakeOver()
        return _stay(place, course, place.results, index=index)
    if not passed:
        return Stay(None)
    newest = [] if ended.newest is None else [ended.newest.results]
    call = ended.nth(passed - 1, packing=course.packing)
    alike = [*newest, place.results]
    return _stay(place, course, call.results, index=index, alike=alike)


def _stay(
    place: Place,
    course: Course,
    ordinals: list[int],
    *,
    index: int,
    alike: Iterable[list[int]] = (),
) -> Stay:
    """The job has passed work ``index`` of ``ordinals``.

    Args:
        place: Where the job is.
        course: Where the joiner is.
        ordinals: Work that came behind one another.
        index: Which of it.
        alike: Later work that came behind one another in the same way.
    """
    if index >= len(ordinals):
        return Stay(None)
    ordinal, large = ordinals[index], place.returned.large
    returned = place.returned.of(ordinal, packing=course.packing)
    if returned is None and large:
        later = [large[each[index]] for each in alike if index < len(each) and each[index] in large]
        returned = Returned(ordinal, [*large.values(), *later][-1])
    return Stay(returned)
