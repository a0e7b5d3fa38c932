"""Many machines leave, wave after wave, and stay out."""

from __future__ import annotations

import pytest

from trainmover.commands import Release
from trainmover.events.machine import MachineQuarantined
from trainmover.events.migration import MigrationApproved
from trainmover.events.operator import DrainEnded, DrainStarted


@pytest.fixture
def make(world_class):
    def make(*, slots: int = 6, spare: int = 4, **policy):
        world = world_class(slots=slots, spare=spare, cooldown_s=5, **policy)
        for number in range(slots + spare):
            world.register(f"w-{number}", labels={"rack": f"r{number % 2}"})
        for number in range(slots, slots + spare):
            world.warming(f"w-{number}")
            world.ready(f"w-{number}")
        world.layouts()
        return world

    return make


def waves(world) -> list[list[str]]:
    return [
        [move.leaver for move in fact.plan.moves]
        for fact in world.facts()
        if isinstance(fact, MigrationApproved)
    ]


def finish(world) -> None:
    world.finish(world.last_plan())


def ended(world) -> list[DrainEnded]:
    return [fact for fact in world.facts() if isinstance(fact, DrainEnded)]


def test_a_rack_is_drained_in_waves_of_a_third(make):
    world = make()
    told = world.ask("drain", labels={"rack": "r0"}, reason="power", requested_by="ada")
    assert told["words"].startswith("5 machines, 3 of them in slots: 2 waves of 2; 1 of them wait")
    held = [fact for fact in world.facts() if isinstance(fact, MachineQuarantined)]
    assert [(one.machine, one.reason) for one in held] == [
        ("w-6", "drain d-0001: power"),
        ("w-8", "drain d-0001: power"),
    ]
    assert waves(world) == [["w-0", "w-2"]], "a third of the slots, by standbys of the other rack"
    plan = world.last_plan()
    assert {move.joiner for move in plan.moves} == {"w-7", "w-9"}
    finish(world)
    released = [one for name, one in world.sent() if isinstance(one, Release) and name == "w-0"]
    assert [one.then for one in released] == ["standby"], "nothing is wrong with it"
    for name in ("w-0", "w-2"):
        world.register(name, 1, labels={"rack": "r0"})
        world.warming(name, 1)
        world.ready(name, 1)
    assert waves(world) == [["w-0", "w-2"]], "who is drained is no standby"
    assert world.ask("status")["drain"]["waits"] == "for standbys: 1 machines are left; add some"
    world.register("w-11", labels={"rack": "r1"})
    world.warming("w-11")
    world.ready("w-11")
    assert waves(world)[1:] == [["w-4"]]
    finish(world)
    assert [(one.outcome, one.left) for one in ended(world)] == [("finished", ())]
    assert world.ask("status")["drain"] is None
    assert world.ask("unquarantine", machine="w-0")["ok"]


def test_the_reserve_is_left(make):
    world = make(spare=2, keep_reserve=1)
    world.ask("drain", machines=["w-0", "w-1"])
    assert waves(world) == [["w-0"]]
    finish(world)
    assert waves(world) == [["w-0"]]


def test_a_deadline_that_cannot_be_held_is_said(make):
    world = make()
    told = world.ask("drain", machines=["w-1"], deadline_s=60, dry_run=True)
    assert "not known: no move of this job was measured" in told["words"]
    world.ask("migrate", machine="w-0")
    world.wait(20)
    finish(world)
    told = world.ask("drain", machines=["w-1", "w-2", "w-3"], deadline_s=30, dry_run=True)
    assert "about 40 s at 20.0 s a wave" in told["words"]
    assert "the deadline in 30 s cannot be held" in told["words"]
    told = world.ask("drain", machines=["w-1", "w-2", "w-3"], deadline_s=50)
    assert "the deadline in 50 s can be held" in told["words"]
    (fact,) = [fact for fact in world.facts() if isinstance(fact, DrainStarted)]
    assert (fact.deadline_at_s, fact.forecast) == (world.now_s + 50, told["words"])


def test_a_drain_is_paused_and_goes_on(make):
    world = make(slots=3)
    world.ask("drain", machines=["w-0", "w-1"])
    assert world.ask("drain", action="pause", reason="lunch")["ok"]
    assert world.ask("drain", action="pause")["code"] == "no_change"
    finish(world)
    world.wait(100)
    assert waves(world) == [["w-0"]]
    world.restart()
    assert world.ask("status")["drain"]["paused"]
    world.ask("drain", action="resume")
    assert waves(world) == [["w-0"], ["w-1"]]


def test_an_abort_ends_the_wave_and_lets_out_who_left(make):
    world = make(slots=3)
    world.ask("drain", machines=["w-0", "w-1", "w-5"])
    finish(world)
    assert set(world.state.inventory.quarantined) == {"w-0", "w-5"}
    told = world.ask("drain", action="abort", reason="wrong rack")
    assert "1 machines keep their slots" in told["words"]
    assert world.state.flight is None
    assert world.state.inventory.quarantined == {}
    assert [(one.outcome, one.left) for one in ended(world)] == [("aborted", ("w-1",))]
    world.wait(500)
    assert waves(world) == [["w-0"], ["w-1"]], "no further wave"


def test_an_aborted_wave_is_tried_again_after_the_cool_down(make):
    world = make(slots=3)
    world.ask("drain", machines=["w-0"])
    world.ask("abort", migration="m-0001")
    assert len(waves(world)) == 1
    world.wait(5)
    assert waves(world) == [["w-0"], ["w-0"]]


def test_a_successor_goes_on(make):
    world = make(slots=3)
    world.ask("drain", machines=["w-0", "w-1", "w-2"])
    for lose in (0, 3, 0, 2, 0):
        world.restart(lose=lose)
        if world.state.flight is not None:
            finish(world)
        world.wait(5)
    assert [one.outcome for one in ended(world)][-1:] == ["finished"]
    assert set(world.state.inventory.quarantined) == {"w-0", "w-1", "w-2"}


def test_a_crash_comes_first(make):
    world = make(slots=3)
    world.ask("drain", machines=["w-0", "w-1"])
    finish(world)
    world.ask("abort", migration="m-0002")
    world.failed("w-2")
    world.wait(2)
    assert world.last_plan().kind == "failure"
    finish(world)
    world.wait(5)
    assert waves(world)[-1] == ["w-1"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "nobody"),
        ({"labels": {"rack": "r9"}}, "nobody"),
        ({"machines": ["w-99"]}, "unknown_machine"),
        ({"action": "pause"}, "no_drain"),
        ({"machines": ["w-0"], "deadline_s": -1}, "malformed"),
    ],
)
def test_what_cannot_be_is_refused(make, fields, code):
    world = make()
    told = world.ask("drain", **fields)
    assert (told["ok"], told["code"]) == (False, code)
    assert told["next_step"]
    assert waves(world) == []


def test_one_drain_at_a_time(make):
    world = make()
    world.ask("drain", machines=["w-0"])
    assert world.ask("drain", machines=["w-1"])["code"] == "drain_under_way"
