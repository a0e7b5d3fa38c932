from __future__ import annotations

from trainmover.events.machine import MachineLost
from trainmover.events.migration import JobFormed


def test_forms_at_once_when_everybody_is_there(world_class):
    world = world_class(slots=2, spare=1)
    assert world.register("w-10") == world.log[:0] or not world.facts()
    world.register("w-9")
    commands = world.register("w-1")
    (formed,) = [p for p in world.facts(commands) if isinstance(p, JobFormed)]
    assert [m.machine for m in formed.membership.members] == ["w-1", "w-9"]
    assert formed.membership.epoch == 1
    assert formed.standbys == ("w-10",)
    assert world.verbs(commands) == ["w-1:start", "w-9:start", "w-10:warm"]


def test_waits_for_late_machines_but_not_for_ever(world_class):
    world = world_class(slots=2, spare=2)
    world.register("w-0")
    world.register("w-1")
    world.wait(1.9)
    assert world.state.phase == "forming"
    world.register("w-2")
    world.wait(1.9)
    assert world.state.phase == "forming"
    commands = world.wait(0.2)
    assert "JobFormed" in world.names(commands)
    assert world.recipients("warm", commands) == ["w-2"]


def test_a_late_machine_is_warmed_for_every_slot(world):
    commands = world.register("w-6")
    ((name, warm),) = world.sent(commands)
    assert (name, warm.verb, warm.slots) == ("w-6", "warm", (0, 1, 2, 3))
    assert warm.membership == world.membership
    assert world.register("w-6") == []


def test_standbys_that_keep_few_slots_warm_share_them(world):
    asked = {}
    for name, count in (("w-6", 1), ("w-7", 2), ("w-8", None), ("w-9", 2)):
        ((_, warm),) = world.sent(world.register(name, warm_limit=count))
        asked[name] = warm.slots
    assert asked == {
        "w-6": (0, 1, 2, 3),
        "w-7": (1, 2, 3, 0),
        "w-8": (0, 1, 2, 3),
        "w-9": (3, 0, 1, 2),
    }


def test_a_machine_of_another_shape_is_refused(world_class):
    world = world_class(slots=2, spare=1)
    world.register("w-0")
    commands = world.register("w-1", ranks=2)
    (lost,) = world.facts(commands)
    assert isinstance(lost, MachineLost)
    assert "same flags" in lost.reason
    assert world.recipients("stop", commands) == ["w-1"]
    commands = world.register("w-2", nnodes=(3, 3))
    assert world.names(commands) == ["MachineLost"]
    world.register("w-3")
    world.wait(2.0)
    assert [m.machine for m in world.membership.members] == ["w-0", "w-3"]


def test_a_machine_that_starts_over_before_the_job_forms_counts_once(world_class):
    world = world_class(slots=2, spare=0)
    world.register("w-0")
    world.register("w-0", generation=1)
    assert world.state.phase == "forming"
    world.register("w-1")
    assert world.membership.members[0].generation == 1
