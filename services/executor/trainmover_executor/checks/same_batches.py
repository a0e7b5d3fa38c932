"""Whether a waiting standby would be given the batches that its rank is given.

What a data set depends on may be out of TrainMover's sight: a file that it reads on in, what an
extension keeps, labels that the program computed with another model. So a standby that waits takes
over where its rank was, in a copy of its process, draws the next batch there, and compares it with
what the rank was given then.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from trainmover.errors import TrainMoverError
from trainmover_executor.feed.trial import Trial

__all__ = ["Drawn", "GivenPrints", "SameBatches"]

log = structlog.get_logger(__name__)

_REMEMBERED: Final = 64
_FIRST_PAUSE_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 600.0
_FIRST_CALLS: Final = 3
"""At the beginning of so many calls of ``session.steps`` there is a comparison in any case."""


class GivenPrints:
    """Prints of the batches that a rank was given last, by where it was given them."""

    def __init__(self) -> None:
        self._prints: deque[tuple[list[list[int]], int]] = deque(maxlen=_REMEMBERED)

    def add(self, where: list[list[int]], number: int) -> None:
        """The rank was given a batch.

        Args:
            where: The open calls in front of it, as in ``Place.open``.
            number: See ``print_of_batch``.
        """
        self._prints.append((where, number))

    def to_tree(self) -> list[int]:
        """Of each batch the name of the place and the print."""
        return [each for where, number in self._prints for each in (_name_of(where), number)]


class Drawn(NamedTuple):
    """What a copy of a standby drew where its rank was.

    Attributes:
        print: See ``print_of_batch``; None where the data had ended.
        whole: Whether all variables of the program were there: those that are large come with a
            plan alone.
    """

    print: int | None
    whole: bool


class SameBatches:
    """Asked by a standby that waits, whenever its rank has shown a place.

    Args:
        differs: Told, once, what is wrong with which batch of its call.
    """

    def __init__(self, *, differs: Callable[[str, int], object]) -> None:
        self._differs = differs
        self._trial: Trial | None = None
        self._drawn: Drawn | None = None
        self._heard: dict[int, int] = {}
        self._where: list[list[int]] = []
        self._at = 0
        self._pause_s = _FIRST_PAUSE_S
        self._due_s = 0.0
        self._calls = 0
        self._call: list[int] = []
        self._is_over = False

    def look(self, seen: Mapping[str, Any], *, now: float, draw: Callable[[], Drawn]) -> None:
        """Go on with a comparison, or begin one if it is time for one.

        Args:
            seen: What the rank has shown.
            now: Seconds on any clock that only goes forward.
            draw: Goes to the place in ``seen`` and draws a batch there; called in a copy of this
                process.
        """
        place = seen["place"]
        if self._is_over or not place["open"]:
            return
        if self._trial is not None or self._drawn is not None:
            # To draw a batch may take as long as many a step.
            self._heard |= _pairs(seen.get("prints", ()))  # nothing from a release before
        if self._trial is not None:
            self._end_trial(now)
        elif self._drawn is not None:
            self._compare(seen, now)
        elif self._is_due(place["open"], now) and Trial.is_possible():
            self._where, self._at = place["open"], place["committed"]
            self._begin(draw, now)

    def stop(self) -> None:
        """A plan needs this standby."""
        if self._trial is not None:
            self._trial.end()
            self._trial = None

    def _is_due(self, where: list[list[int]], now: float) -> bool:
        call = [ordinal for ordinal, _ in where]
        if call != self._call and self._calls < _FIRST_CALLS:
            self._due_s = now
            self._calls += 1
        self._call = call
        return now >= self._due_s

    def _begin(self, draw: Callable[[], Drawn], now: float) -> None:
        try:
            self._trial = Trial(partial(_outcome_of, draw))
            self._heard.clear()
        except OSError as error:
            log.debug("no batch to compare", error=str(error))
            self._wait(now)

    def _end_trial(self, now: float) -> None:
        assert self._trial is not None  # noqa: S101 - the caller looked
        outcome = self._trial.outcome()
        if outcome is None:
            return
        self._trial = None
        if "error" in outcome:
            self._say(outcome["error"])
        elif outcome.get("print") is not None:
            self._drawn = Drawn(**outcome)
            return
        log.debug("no batch to compare", where=self._where, outcome=outcome)
        self._wait(now)

    def _compare(self, seen: Mapping[str, Any], now: float) -> None:
        assert self._drawn is not None  # noqa: S101 - the caller looked
        theirs = self._heard.get(_name_of(self._where))
        if theirs is None and seen["place"]["committed"] <= self._at + _REMEMBERED:
            return
        if theirs is not None and theirs != self._drawn.print and self._drawn.whole:
            self._say("it is another one than that of the rank")
        log.debug("compared a batch", where=self._where, theirs=theirs, drawn=self._drawn)
        self._drawn = None
        self._wait(now)

    def _say(self, what: str) -> None:
        self._is_over = True
        self._differs(what, self._where[-1][1] + 1)

    def _wait(self, now: float) -> None:
        self._due_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def _outcome_of(draw: Callable[[], Drawn]) -> dict[str, Any]:
    try:
        return draw()._asdict()
    except TrainMoverError as error:
        return {"error": str(error)}


def _name_of(where: list[list[int]]) -> int:
    return zlib.crc32(repr(where).encode())


def _pairs(numbers: Sequence[int]) -> dict[int, int]:
    return dict(zip(numbers[::2], numbers[1::2], strict=False))
