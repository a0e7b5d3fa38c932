"""Changes of one attribute by the number of batches drawn before; a count takes one entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Run", "added", "before"]


@dataclass(frozen=True, slots=True)
class Run:
    """Changes at regular distances and by the same number.

    Attributes:
        at: Batches drawn before the first change.
        value: What the attribute was changed to then, as a portable tree.
        times: How many changes these are.
        every: Batches from one to the next.
        by: What is added from one to the next; of a single change nothing.
    """

    at: int
    value: Any
    times: int = 1
    every: int = 1
    by: int = 0

    def tree(self) -> list[Any]:
        """As it goes to other processes."""
        single = [self.at, self.value]
        return single if self.times == 1 else [*single, self.times, self.every, self.by]

    @classmethod
    def of_tree(cls, tree: Sequence[Any]) -> Run:
        """What ``tree`` returned."""
        return cls(*tree)

    def has(self, drawn: int) -> bool:
        """Whether the attribute is changed behind so many batches."""
        number, off = divmod(drawn - self.at, self.every)
        return not off and 0 <= number < self.times

    def value_at(self, drawn: int) -> Any:
        """To what it is changed then."""
        return self.value + (drawn - self.at) // self.every * self.by if self.by else self.value

    def before(self, drawn: int) -> Run | None:
        """Of its changes those in front of so many batches; None if there are none."""
        times = min(self.times, -(-(drawn - self.at) // self.every))
        if times <= 0:
            return None
        return Run(self.at, self.value) if times == 1 else replace(self, times=times)

    def longer(self, drawn: int, value: Any) -> Run | None:
        """With one change more; None if that does not fit."""
        if type(value) is not int or type(self.value) is not int:
            return None
        if self.times == 1:
            by = value - self.value
            return Run(self.at, self.value, times=2, every=drawn - self.at, by=by)
        wanted = (self.at + self.times * self.every, self.value + self.times * self.by)
        return replace(self, times=self.times + 1) if (drawn, value) == wanted else None


def added(runs: Sequence[Run], drawn: int, value: Any) -> list[Run]:
    """``runs`` and one change more, which is behind all of them."""
    longer = runs[-1].longer(drawn, value) if runs else None
    return [*runs, Run(drawn, value)] if longer is None else [*runs[:-1], longer]


def before(runs: Sequence[Run], drawn: int) -> Iterator[Run]:
    """Of ``runs`` the changes in front of so many batches, as they were noted by then."""
    for run in runs:
        earlier = run.before(drawn)
        if earlier is not None:
            yield earlier
