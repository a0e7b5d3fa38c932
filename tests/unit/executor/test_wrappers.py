"""Iterators around the steps count what a joiner did not draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice, zip_longest

import pytest

from trainmover.errors import ConfigError
from trainmover_executor.program.wrappers import bring_along


class Steps(Iterator[int]):
    """Numbers that jump ``by`` in front of the one after ``at``."""

    def __init__(self, *, at: int, by: int) -> None:
        self.at, self.by, self.count, self.empty = at, by, 0, False

    def __next__(self) -> int:
        if self.empty:
            return -1
        if self.count == self.at:
            bring_along(self, by=self.by, empty=self.while_empty)
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
