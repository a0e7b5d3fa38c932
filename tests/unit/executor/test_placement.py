"""Where the vote is, and what became of a dead rank's variables."""

from __future__ import annotations

import pytest

from trainmover_executor.moves.predict import predicted
from trainmover_executor.position.placement import Placement, Sighting

QUIET = Sighting()


@pytest.mark.parametrize(
    ("at_end", "seen", "wants"),
    [
        (False, [], False),
        (False, [QUIET] * 20, False),
        (False, [Sighting(communicated=True)], True),
        (False, [Sighting(changed=True)], True),
        (False, [Sighting(changed=True)] + [QUIET] * 40, True),
        (True, [], True),
        (True, [QUIET] * 15, True),
        (True, [QUIET] * 16, False),
        (True, [QUIET] * 15 + [Sighting(communicated=True)] + [QUIET] * 40, True),
    ],
)
def test_where_a_rank_wants_its_votes(at_end, seen, wants):
    """Several optimizers have their votes at the end first, one has them in front."""
    placement = Placement()
    for each in seen:
        placement = placement.saw(each)
    assert placement.wants_the_end(at_end=at_end) is wants


def test_a_program_that_asked_for_the_end_keeps_it():
    placement = Placement(settled=True)
    for _ in range(40):
        placement = placement.saw(QUIET)
    assert placement.wants_the_end(at_end=True)


def test_it_travels():
    placement = Placement(quiet=3, settled=True)
    assert Placement.from_tree(placement.to_tree()) == placement


@pytest.mark.parametrize(
    ("theirs", "then", "now", "certain", "unknown"),
    [
        ({"n": 1}, {"n": 1}, {"n": 2}, {"n": 2}, []),  # the same on all ranks
        ({"n": 5}, {"n": 1}, {"n": 1}, {}, []),  # its own: running the code tells
        ({"n": 5}, {"n": 1}, {"n": 2}, {}, ["n"]),  # each rank's own, and changed since
        ({}, {}, {"n": 2}, {"n": 2}, []),  # new since the vote
        ({}, {"n": 1}, {"n": 2}, {}, ["n"]),
        ({"n": float("nan")}, {"n": float("nan")}, {"n": 2}, {"n": 2}, []),
    ],
)
def test_what_became_of_a_variable(theirs, then, now, certain, unknown):
    assert predicted(theirs, then=then, now=now) == (certain, unknown)
