"""What a standby takes over where the job stands: the dead rank's, as of its last vote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.executor.decisions import plan

from trainmover_executor.moves.joining.coming import Coming
from trainmover_executor.position.position import EndedCall, Place, Position


def voted(*open_calls: list[int], **variables: Any) -> Position:
    feeds: list[Any] = [f"feed {depth}" for depth in range(len(open_calls))]
    return Position(feeds, {"cpu": b"then"}, [], variables, open=list(open_calls))


def place(*open_calls: list[int], ended: int = 0) -> Place:
    calls = [EndedCall(4, 4, False, {})] * ended
    return Place(list(open_calls), [calls, *([] for _ in open_calls)], 4, 0, [])


def coming(
    vote: Position, now: Place, *, then: dict[str, Any] | None = None, **variables: Any
) -> Coming:
    found = Coming(plan(2, kind="failure"))
    found.voted = vote
    found.told = {"place": now.to_tree(), "then": then or vote.variables, "now": variables}
    return found


def arrived(one: Coming, *, issued: int = 0, hidden: frozenset[str] = frozenset()) -> Position:
    one.ran_the_rest, one.hidden = True, hidden
    return one.position(issued=issued)


def test_the_program_goes_to_the_last_vote_first() -> None:
    one = coming(voted([1, 4]), place([2, 0], ended=1))
    assert one.needs_the_rest
    assert one.target.open == [[1, 4]]
    one.ran_the_rest = True
    assert one.target.open == [[2, 0]]


def test_what_the_dead_rank_showed_last_is_taken_as_it_is() -> None:
    one = coming(voted([1, 4]), place([1, 4]))
    one.now = voted([1, 4], n=7)
    assert not one.needs_the_rest
    assert one.position(issued=0) is one.now


def test_code_in_front_of_the_body_of_one_more_step_sees_what_it_saw_in_the_job() -> None:
    vote = replace(voted([1, 4], count=4, best=0.5), given={"count": 3})
    one = coming(vote, place([1, 4]), count=5)
    assert one.variables_when_given([[1, 4]]) == {"count": 3, "best": 0.5}
    assert one.variables_when_given([[1, 5]]) == {}  # it comes there by itself
    one.now = voted([1, 4], count=6)
    assert one.variables_when_given([[1, 5]]) == {"count": 6}


@pytest.mark.parametrize(
    ("then", "now", "feeds"),
    [
        ([[1, 4]], [[1, 4]], ["feed 0"]),
        ([[1, 4]], [[2, 0]], [None]),  # the next call has given no step
        ([[1, 4]], [], []),  # between two calls
        ([[1, 4]], [[1, 4], [1, 0]], ["feed 0", None]),  # a call inside of it has begun
        ([[1, 4], [1, 3]], [[1, 4]], ["feed 0"]),  # that one has ended
        ([[1, 4], [1, 3]], [[1, 5], [1, 0]], ["feed 0", None]),  # one of the next outer step
    ],
)
def test_positions_belong_to_the_calls_of_the_vote(then: Any, now: Any, feeds: Any) -> None:
    one = coming(voted(*then), place(*now, ended=int(now != then)))
    assert arrived(one).feeds == feeds


def test_variables_that_the_program_set_from_the_dead_ranks_stay() -> None:
    """A sum that began with 0 at every rank: another rank's is no guess for it."""
    one = coming(voted([1, 4], **{"main.gap": 0.0}), place([1, 4]), **{"main.gap": 0.7})
    assert arrived(one).variables == {}


@pytest.mark.parametrize("norm", [0.37, {"is": "dict", "items": [["line", [1.0, 0.37]]]}])
def test_what_ranks_have_computed_alike_is_what_another_rank_has(norm: Any) -> None:
    """The norm of gradients that were reduced: those of this program's body were not."""
    alike = {"main.norm": norm}
    one = coming(voted([1, 4], **alike), place([1, 4]), **{"main.norm": 0.5})
    assert arrived(one).variables == {"main.norm": 0.5}


def test_what_was_computed_from_stand_ins_is_what_another_rank_has() -> None:
    one = coming(
        voted([1, 4], **{"main.mean": 0.0, "main.own": 3}),
        place([1, 4]),
        then={"main.mean": 0.0, "main.own": 2},
        **{"main.mean": 0.7, "main.own": 4, "main.set": 1},
    )
    assert arrived(one, issued=1).variables == {"main.mean": 0.7}


def test_variables_of_a_generator_come_from_another_rank() -> None:
    one = coming(voted([1, 4]), place([1, 4]), **{"progress@1.count": 10, "main.hidden": 0.1})
    found = arrived(one, hidden=frozenset({"progress@1"}))
    assert found.variables == {"progress@1.count": 10}


def test_a_program_beyond_the_vote_goes_on_from_where_it_is() -> None:
    one = coming(voted([1, 4], **{"main.n": 4}), place([2, 0], ended=1), **{"main.n": 5})
    one.is_beyond = True
    found = one.position(issued=0)
    assert one.target.open == [[2, 0]]
    assert found.variables == {"main.n": 5}
    assert found.rng == {"cpu": b"then"}
