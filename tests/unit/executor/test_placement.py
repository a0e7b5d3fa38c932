"""Where the vote is, and what became of a dead rank's variables."""

from __future__ import annotations

import pytest

from trainmover_executor.placement import Placement, Sighting
from trainmover_executor.predict import predicted

QUIET = Sighting()


def after(placement: Placement, *sightings: Sighting) -> Placement:
    for each in sightings:
        placement = placement.saw(each)
        placement = placement.agreed(placement.wish)
    return placement


@pytest.mark.parametrize(
    ("optimizers", "seen", "at_end"),
    [
        (1, [], False),
        (1, [QUIET] * 20, False),
        (1, [Sighting(communicated=True)], True),
        (1, [Sighting(changed=True)], True),
        (1, [Sighting(changed=True)] + [QUIET] * 40, True),
        (2, [], True),
        (2, [QUIET] * 15, True),
        (2, [QUIET] * 16, False),
        (2, [QUIET] * 15 + [Sighting(communicated=True)] + [QUIET] * 40, True),
    ],
)
def test_where_the_next_vote_is(optimizers, seen, at_end):
    assert after(Placement.first(optimizers=optimizers), *seen).at_end is at_end


def test_what_any_rank_asks_for_holds_for_all():
    quiet = Placement.first(optimizers=1)
    assert quiet.wish == 0
    assert quiet.agreed(1).at_end


def test_it_travels():
    placement = Placement(at_end=True, quiet=3, settled=True)
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
