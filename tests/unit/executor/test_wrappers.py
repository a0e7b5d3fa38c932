"""Iterators around the steps count what a joiner did not draw."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice, zip_longest
from types import CodeType

import pytest

from trainmover.errors import ConfigError
from trainmover_executor.program.wrappers import bring_along, generators_around


class Steps(Iterator[int]):
    """Numbers that jump ``by`` in front of the one after ``at``."""

    def __init__(self, *, at: int, by: int) -> None:
        self.at, self.by, self.count, self.empty = at, by, 0, False
        self.around: frozenset[CodeType] = frozenset()

    def __next__(self) -> int:
        if self.empty:
            return -1
        if self.count == self.at:
            bring_along(
                self,
                by=self.by,
                empty=self.while_empty,
                frame=sys._getframe(1),
                around=self.around,
            )
        self.count += 1
        if self.count > 6:
            raise StopIteration
        return self.count

    def while_empty(self, work: Callable[[], None]) -> None:
        self.empty = True
        work()
        self.empty = False


def bar(items):
    """As progress bars are written."""
    yield from items


@pytest.mark.parametrize("by", [0, 3])
def test_enumerate_counts_on(by):
    counted = [index for index, _ in enumerate(Steps(at=2, by=by))]
    assert counted == [0, 1, *range(2 + by, 6 + by)]


def test_enumerate_counts_back():
    counted = [index for index, _ in enumerate(Steps(at=3, by=-2))]
    assert counted == [0, 1, 2, 1, 2, 3]


def test_islice_has_so_many_less():
    assert list(islice(Steps(at=1, by=2), 5)) == [1, 2, 3]


def test_both_around_each_other():
    assert [i for i, _ in enumerate(islice(Steps(at=1, by=2), 5))] == [0, 3, 4]


def test_a_generator_in_between_does_no_harm():
    steps = Steps(at=1, by=2)
    assert list(bar(steps)) == [1, 2, 3, 4, 5, 6]


def logged(items):
    """As a reference's logger: it counts by itself, too."""
    for at, each in enumerate(items):
        yield each
        assert at < 100


class Shown:
    """As a progress bar that is an iterator of its own."""

    def __init__(self, items):
        self.items = iter(items)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.items)


@pytest.mark.parametrize("hand_on", [bar, logged, Shown, lambda items: bar(logged(Shown(items)))])
@pytest.mark.parametrize("by", [3, -1])
def test_what_counts_items_that_something_else_hands_on_counts_along(hand_on, by):
    counted = [index for index, _ in enumerate(hand_on(Steps(at=2, by=by)))]
    assert counted == [0, 1, *range(2 + by, 6 + by)]


def counted(items, into):
    for index, each in enumerate(items):
        into.append(index)
        yield each


@pytest.mark.parametrize("by", [0, 1, 4])
def test_enumerate_that_has_given_nothing_counts_once(by):
    """A joiner comes in front of the first step of a call, and the loop is not enumerated."""
    indices: list[int] = []
    for each in counted(Steps(at=0, by=by), indices):
        assert each
    assert indices == [*range(by, 6 + by)]


@pytest.mark.parametrize("by", [2, -1])
def test_counts_on_both_sides_of_a_logger_grow(by):
    counted = [(i, j) for i, (j, _) in enumerate(bar(enumerate(Steps(at=2, by=by), 5)))]
    assert counted == [(0, 5), (1, 6), *((at, at + 5) for at in range(2 + by, 6 + by))]


def test_a_generator_in_which_bodies_run_gives_something_else():
    """It may give one loss for each epoch: a joiner's gives as many."""

    def train(steps):
        total = 0
        for each in steps:
            steps.around = generators_around(sys._getframe())
            total += each
            if each % 2 == 0:
                yield total

    assert [index for index, _ in enumerate(train(Steps(at=3, by=7)))] == [0, 1, 2]


def test_islice_and_zip_around_a_logger_are_refused():
    with pytest.raises(ConfigError, match=r"place of islice\(\)"):
        list(islice(bar(Steps(at=1, by=2)), 5))
    with pytest.raises(ConfigError, match=r"is wrapped in zip\(\)"):
        list(zip(bar(Steps(at=1, by=2)), range(9), strict=False))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda steps: zip(steps, range(9), strict=False),
        lambda steps: zip(range(9), enumerate(steps), strict=False),
        lambda steps: map(str, steps),
        lambda steps: filter(None, steps),
        lambda steps: chain(steps, [1]),
        lambda steps: zip_longest(steps, [1]),
    ],
    ids=["zip", "zip of enumerate", "map", "filter", "chain", "zip_longest"],
)
def test_what_has_a_place_of_its_own_is_refused(wrap):
    with pytest.raises(ConfigError, match=r"is wrapped in \w+\(\), whose place"):
        list(wrap(Steps(at=1, by=2)))


def test_islice_cannot_be_taken_back():
    with pytest.raises(ConfigError, match=r"islice\(\)"):
        list(islice(Steps(at=1, by=-1), 5))


class Bar:
    """Counts as tqdm does, in a local variable."""

    __module__ = "tqdm.std"

    def __init__(self, iterable):
        self.iterable, self.n = iterable, 0

    def __iter__(self):
        n = self.n
        for each in self.iterable:
            yield each
            n += 1
        self.n = n


@pytest.mark.parametrize("by", [-1, 3])
@pytest.mark.parametrize("outside", [True, False])
def test_a_bar_counts_on(*, by, outside):
    steps = Steps(at=2, by=by)
    bar = Bar(enumerate(steps)) if outside else Bar(steps)
    counted = [index for index, _ in (bar if outside else enumerate(bar))]
    assert counted == [0, 1, *range(2 + by, 6 + by)]
    assert bar.n == 6 + by
