"""How a joiner's program gets to where the job stands: a table of place and course."""

from __future__ import annotations

import pytest

from trainmover_executor.moves.course_packing import PACKING
from trainmover_executor.position.course import (
    Course,
    EndCall,
    Lost,
    OneMoreStep,
    Stay,
    TakeOver,
    place_of_vote,
    still_open,
    way_to,
)
from trainmover_executor.position.ended import EndedCall
from trainmover_executor.position.position import Place, Position
from trainmover_executor.position.results import Returned

NOWHERE = Position([], {}, [], {})


def result(index: int) -> Returned:
    return Returned(index + 1, f"r{index}")


def run(script: str) -> Course:
    """A course from letters: ( begins a call, . draws, ) ends it, | leaves it, b is in between."""
    course = Course(PACKING)
    committed, works = 0, 0
    for letter in script:
        match letter:
            case "(":
                course.begin()
            case ".":
                course.draw(course.levels[-1])
                committed += 1
            case ")" | "|":
                level = course.levels[-1]
                left_at = NOWHERE if letter == "|" else None
                course.end(level, committed=committed, variables={}, left_at=left_at)
            case "b":
                course.work(result(works))
                works += 1
    return course


def ended(drawn: int, committed: int, *, left: bool = False) -> EndedCall:
    return EndedCall(drawn, committed, left, {})


@pytest.mark.parametrize(
    ("job", "joiner", "way"),
    [
        ("(", "(", TakeOver()),  # nobody has begun
        ("(..", "(...", TakeOver()),  # in the same call: its place in the data is sought
        ("(..)(.", "(...", EndCall(ended(2, 2))),  # an epoch loop
        ("(..)(.", "(...)(", TakeOver()),
        ("(..|(.", "(...", EndCall(ended(2, 2, left=True))),  # the job broke out of its loop
        ("()(.", "(...", EndCall(ended(0, 0))),  # a call without steps
        ("(.(..", "(.(", TakeOver()),  # nested, in the same outer step
        ("(.(..", "(.", Lost),  # the joiner passed the inner call
        ("(..(.", "(.", OneMoreStep(drawn=2)),  # the inner call is behind the outer's second step
        ("(.(.)", "(.(.", EndCall(ended(1, 2))),  # the inner call has ended
        ("(.", "(.)(", Lost),  # the joiner is further than the job
        ("(.", "(.(.", Lost),  # in a call that the job has not begun
    ],
)
def test_the_way_to_the_next_step(job, joiner, way):
    place = run(job).place(committed=9, between=False)
    found = way_to(place, run(joiner), between=False)
    assert isinstance(found, Lost) if way is Lost else found == way


@pytest.mark.parametrize(
    ("job", "joiner", "way"),
    [
        ("(..", "(..", TakeOver()),  # the first between_steps of the same step
        ("(..b", "(..", Stay(result(0))),  # the job has passed this one
        ("(..b", "(..b", TakeOver()),
        ("(...", "(..", Stay(None)),  # of an earlier step
        ("(..)", "(..)", TakeOver()),  # behind a call
        ("(..)b", "(..)", Stay(result(0))),
    ],
)
def test_the_way_to_work_between_steps(job, joiner, way):
    place = run(job).place(committed=9, between=True)
    assert way_to(place, run(joiner), between=True) == way


def test_a_program_that_works_where_the_job_has_not_come_is_lost():
    place = run("(..").place(committed=2, between=True)
    assert isinstance(way_to(place, run("(..)"), between=True), Lost)


def test_a_program_that_asks_for_a_step_where_the_job_is_in_between_runs_one_more():
    place = run("(..").place(committed=2, between=True)
    assert way_to(place, run("(."), between=False) == OneMoreStep(drawn=2)


def test_results_after_an_ended_call_are_told_to_who_comes_there_later():
    place = run("(..)bb(.").place(committed=3, between=False)
    assert way_to(place, run("(...)"), between=True) == Stay(result(0))
    assert way_to(place, run("(...)b"), between=True) == Stay(result(1))


def test_results_in_the_last_step_of_an_ended_call_are_told_to_who_comes_there_later():
    place = run("(..bb)(").place(committed=2, between=False)
    assert way_to(place, run("(.."), between=True) == Stay(result(0))
    assert way_to(place, run("(..b"), between=True) == Stay(result(1))
    assert way_to(place, run("(."), between=True) == Stay(None)  # of an earlier step


def test_a_joiner_goes_to_the_vote_before_it_goes_to_the_place():
    place = run("(..)(").place(committed=2, between=False)
    vote = place_of_vote([[1, 2]], place)
    assert way_to(vote, run("(."), between=False) == TakeOver()
    assert way_to(vote, run("(..)("), between=False).reason.startswith("this program is in call 2")


def test_a_program_that_has_left_the_call_of_the_vote_is_beyond_it():
    """The job was in an evaluation behind the call when the machine died, and so was a standby."""
    job, joiner = run("(..)b(..)"), run("(..)b(..)")
    place = job.place(committed=4, between=True)
    assert way_to(place, joiner, between=True) == TakeOver()
    vote = place_of_vote([[2, 2]], place)
    assert isinstance(way_to(vote, joiner, between=True), Lost)
    assert way_to(vote, run("(..)b(."), between=False) == TakeOver()


@pytest.mark.parametrize(
    ("then", "now", "count"),
    [
        ([[1, 2]], "(..", 1),
        ([[1, 2]], "(..)(", 0),
        ([[1, 2], [1, 1]], "(..(.", 2),
        ([[1, 2], [1, 1]], "(..(.)(", 1),
        ([[1, 2], [1, 1]], "(...(", 1),
        ([[1, 2]], "", 0),
    ],
)
def test_calls_of_the_vote_that_are_open_still(then, now, count):
    assert still_open(then, run(now).place(committed=2, between=False)) == count


def test_a_step_forgets_the_calls_inside_of_the_one_before():
    course = run("(.(.).")
    assert len(course.levels[-1].ended) == 0
    assert course.begin().ordinal == 1


def test_who_ends_an_outer_call_ends_those_inside():
    course = run("(.(.")
    course.end(course.levels[1], committed=2, variables={}, left_at=NOWHERE)
    assert len(course.levels) == 1
    course.end(course.levels[0].__class__(ordinal=1), committed=2, variables={}, left_at=NOWHERE)
    assert len(course.levels[0].ended) == 1


def test_a_joiner_that_adopts_a_place_stands_there():
    job = run("(..)b(.(...b")
    place = Place.from_tree(job.place(committed=6, between=True).to_tree())
    joiner = run("(...)(.(.")
    joiner.adopt(place)
    assert joiner.place(committed=6, between=True) == place


def test_a_first_call_without_steps_ends_alone():
    course = Course(PACKING)
    course.end(course.begin(), committed=0, variables={})
    assert len(course.levels) == 1
    assert len(course.levels[0].ended) == 1
    assert course.begin().ordinal == 2


def test_an_inner_call_ends_without_the_outer_one_that_gave_as_many_steps():
    course = Course(PACKING)
    outer = course.begin()
    course.draw(outer)
    inner = course.begin()
    course.draw(inner)
    course.end(inner, committed=2, variables={})
    assert course.levels[-1] is outer
    place = course.place(committed=2, between=False)
    assert place.open == [[1, 1]]
    assert way_to(place, course, between=False) == TakeOver()
