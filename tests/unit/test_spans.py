"""Ranks as spans: the same ranks, and few spans where they lie on a mesh."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmover.events.executor import JobLayoutKnown, Span
from trainmover.job.spans import after, as_spans, covers, some


@given(st.sets(st.integers(0, 60)))
def test_spans_hold_the_same_ranks(ranks: set[int]) -> None:
    spans = as_spans(ranks)
    assert sorted(rank for span in spans for rank in span) == sorted(ranks)
    assert all(covers(spans, rank) == (rank in ranks) for rank in range(62))


def test_a_row_of_the_mesh_is_one_span() -> None:
    assert as_spans(range(8)) == (range(8),)
    assert as_spans(range(3, 64, 8)) == (range(3, 60, 8),)
    assert as_spans([5]) == (range(5, 6),)
    assert as_spans([0, 1, 8, 9]) == (range(2), range(8, 10))


def test_the_next_higher_rank_comes_first() -> None:
    assert list(after(range(0, 10, 2), 4)) == [6, 8, 0, 2]


def test_a_layout_is_as_short_for_many_ranks_as_for_few() -> None:
    fact = JobLayoutKnown(machine="w", rank=3, alike=Span.of(range(3, 2**20, 8)))
    assert len(fact.model_dump_json()) < 150
    assert fact.spans == (range(3, 2**20 - 4, 8),)


def test_ranks_that_were_named_one_by_one_are_understood() -> None:
    said = '{"machine":"w","rank":1,"replicas":[0,1,2,3]}'
    assert JobLayoutKnown.model_validate_json(said).spans == (range(4),)


def test_people_are_told_of_some() -> None:
    assert some([1, 2]) == "[1, 2]"
    assert some(range(100)).endswith("15, ... (100 in all)]")
