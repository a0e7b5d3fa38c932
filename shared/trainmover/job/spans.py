"""Sets of ranks as spans of the mesh: as short for a million ranks as for eight.

Ranks that hold the same state lie on a mesh of tensor, pipeline and data parallel groups, so they
are a few regular rows of numbers. Naming each of them would make what all ranks say together grow
with the square of the job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

__all__ = ["Spans", "after", "as_spans", "covers", "some"]

Spans = tuple[range, ...]
"""Ascending ranges that do not meet."""

_NAMED: Final = 16


def as_spans(ranks: Iterable[int]) -> Spans:
    """The fewest ranges that a single look from the lowest rank to the highest finds."""
    rest = sorted(set(ranks))
    spans: list[range] = []
    first = 0
    while first < len(rest):
        last = first + 1
        step = rest[last] - rest[first] if last < len(rest) else 1
        while last < len(rest) and rest[last] - rest[last - 1] == step:
            last += 1
        if last - first == 2 and step > 1 and last < len(rest):
            last, step = first + 1, 1  # two are a row only if nothing else could be one
        spans.append(range(rest[first], rest[last - 1] + 1, step))
        first = last
    return tuple(spans)


def covers(spans: Spans, rank: int) -> bool:
    """Whether ``rank`` is in one of the spans."""
    return any(rank in span for span in spans)


def after(span: range, rank: int) -> Iterator[int]:
    """All of a span's ranks but ``rank``: the next higher one first, then around."""
    cut = bisect_right(span, rank)
    yield from span[cut:]
    yield from (other for other in span[:cut] if other != rank)


def some(ranks: Sequence[int]) -> str:
    """Ranks for a sentence that people read: not more than it can hold."""
    named = ", ".join(map(str, ranks[:_NAMED]))
    more = f", ... ({len(ranks)} in all)" if len(ranks) > _NAMED else ""
    return f"[{named}{more}]"
