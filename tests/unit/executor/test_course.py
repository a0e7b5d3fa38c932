"""Where a process is in its calls of ``session.steps``."""

from __future__ import annotations

from trainmover_executor.course import Course, TakeOver, way_to


def test_a_first_call_without_steps_ends_alone():
    course = Course()
    course.end(course.begin(), committed=0, left=False, variables={})
    assert len(course.levels) == 1
    assert len(course.levels[0].ended) == 1
    assert course.begin().ordinal == 2


def test_an_inner_call_ends_without_the_outer_one_that_gave_as_many_steps():
    course = Course()
    outer = course.begin()
    course.draw(outer)
    inner = course.begin()
    course.draw(inner)
    course.end(inner, committed=2, left=False, variables={})
    assert course.levels[-1] is outer
    place = course.place(committed=2, between=False)
    assert place.open == [[1, 1]]
    assert way_to(place, course, between=False) == TakeOver()
