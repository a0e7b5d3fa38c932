"""A detector's opinion ends a machine only within limits; evidence of death always does."""

from __future__ import annotations

import pytest

from trainmover.events.migration import MigrationRejected


def rejected(world, commands):
    return [fact.code for fact in world.facts(commands) if isinstance(fact, MigrationRejected)]


def test_advice_to_recover_is_followed(world):
    world.advised("w-1", "recover")
    assert world.last_plan().moves[0].leaver == "w-1"


@pytest.mark.parametrize(("kind", "advice"), [("straggler", "none"), ("hang", "none")])
def test_a_finding_without_advice_moves_nobody(world, kind, advice):
    assert world.advised("w-1", advice, kind=kind) == []


def test_a_finding_that_is_unsure_ends_nobody(world):
    said = world.advised("w-1", "recover", sure=0.4)
    assert rejected(world, said) == ["unsure"]
    assert world.plans() == []


def test_after_so_many_in_an_hour_the_others_wait_for_people(world_class):
    world = world_class(slots=6, spare=4, fence_budget=2)
    world.form()
    for name in ("w-0", "w-1"):
        world.advised(name, "recover")
        world.finish(world.last_plan())
    before = len(world.plans())
    said = world.advised("w-2", "recover")
    assert rejected(world, said) == ["fence_budget"]
    assert len(world.plans()) == before
    world.restart()
    assert len(world.plans()) == before, "a planner that starts over knows how many there were"
    world.failed("w-2")
    assert world.last_plan().moves[0].leaver == "w-2", "evidence of death has no limit"
    world.finish(world.last_plan())
    world.wait(3700)
    world.advised("w-3", "recover")
    assert world.last_plan().moves[0].leaver == "w-3"


def test_several_detectors_have_to_agree_where_that_is_asked(world_class):
    world = world_class(fence_votes=2)
    world.form()
    assert rejected(world, world.advised("w-1", "recover", by="hang")) == ["too_few_detectors"]
    world.advised("w-1", "recover", kind="numeric", by="numeric")
    assert world.last_plan().moves[0].leaver == "w-1"
