"""No machine is left for a slot: hold, save and end, or end; the first machine that comes helps."""

from __future__ import annotations

import pytest

from trainmover.commands import Recover, SaveCheckpoint
from trainmover.events.executor import CheckpointSaved
from trainmover.events.migration import JobFailed, JobHeld


@pytest.fixture
def lonely(world_class):
    def make(**settings):
        world = world_class(slots=3, spare=0, **settings)
        world.form()
        world.failed("w-1")
        world.broken(["w-0", "w-2"])
        return world

    return make


def saved(world, name, rank, **other):
    fields = {"machine": name, "rank": rank, "epoch": 1, "step": 7, "path": f"/ckpt/{rank}"}
    return world.say(CheckpointSaved.model_validate({**fields, **other}))


def test_hold_waits_for_ever_and_takes_the_first_machine_that_registers(lonely):
    world = lonely()
    (held,) = [fact for fact in world.facts() if isinstance(fact, JobHeld)]
    assert held.slots == (1,)
    assert "Add a machine" in held.reason
    world.wait(10_000)
    assert world.state.phase == "held"
    world.register("w-9")
    world.warming("w-9")
    plan = world.last_plan()
    assert [str(move) for move in plan.moves] == ["w-1 -> w-9 in slot 1"]
    assert {name for name, command in world.sent() if isinstance(command, Recover)} == {
        "w-0",
        "w-2",
        "w-9",
    }
    world.finish(plan)
    assert world.state.phase == "running"
    assert world.state.held_s is None


def test_fail_ends_the_job_after_the_grace_and_says_why(lonely):
    world = lonely(when_exhausted="fail", exhausted_after_s=20)
    assert world.wait(19) == []
    commands = world.wait(2)
    (failed,) = [fact for fact in world.facts(commands) if isinstance(fact, JobFailed)]
    assert failed.code == "exhausted"
    assert "No machine came in 20 s" in failed.reason
    assert world.recipients("stop", commands) == ["w-0", "w-1", "w-2"]


def test_a_machine_that_comes_in_time_continues_the_job(lonely):
    world = lonely(when_exhausted="fail", exhausted_after_s=20)
    world.wait(15)
    world.register("w-9")
    world.warming("w-9")
    world.finish(world.last_plan())
    world.wait(100)
    assert world.state.phase == "running"


def test_checkpoint_asks_the_survivors_and_ends_when_all_have_saved(lonely):
    world = lonely(when_exhausted="checkpoint", exhausted_after_s=20)
    commands = world.wait(21)
    asked = [name for name, command in world.sent(commands) if isinstance(command, SaveCheckpoint)]
    assert asked == ["w-0", "w-2"]
    assert not any(isinstance(fact, JobFailed) for fact in world.facts(saved(world, "w-0", 0)))
    (failed,) = [f for f in world.facts(saved(world, "w-2", 2)) if isinstance(f, JobFailed)]
    assert failed.code == "exhausted"
    assert "/ckpt/0 (step 7), /ckpt/2 (step 7)" in failed.reason


def test_checkpoint_does_not_wait_for_ever(lonely):
    world = lonely(when_exhausted="checkpoint", exhausted_after_s=20, checkpoint_deadline_s=30)
    world.wait(21)
    saved(world, "w-0", 0)
    (failed,) = [fact for fact in world.facts(world.wait(31)) if isinstance(fact, JobFailed)]
    assert "ranks [2] did not say" in failed.reason


def test_a_planner_that_starts_over_keeps_the_clock_of_the_hold(lonely):
    world = lonely(when_exhausted="fail", exhausted_after_s=20)
    world.wait(15)
    world.restart()
    assert any(isinstance(fact, JobFailed) for fact in world.facts(world.wait(6)))


def test_ranks_that_cannot_save_say_why(lonely):
    world = lonely(when_exhausted="checkpoint", exhausted_after_s=20)
    world.wait(21)
    saved(world, "w-0", 0)
    commands = saved(world, "w-2", 2, path="", obstacle="the disk is full")
    (failed,) = [fact for fact in world.facts(commands) if isinstance(fact, JobFailed)]
    assert "/ckpt/0 (step 7); rank 2 saved none: the disk is full" in failed.reason


def test_what_was_saved_at_an_earlier_epoch_does_not_count(lonely):
    world = lonely(when_exhausted="checkpoint", exhausted_after_s=20)
    world.wait(21)
    saved(world, "w-0", 0, epoch=0)
    assert not any(isinstance(f, JobFailed) for f in world.facts(saved(world, "w-2", 2)))
