"""What the seeds found, each played on purpose: moments that a test with real processes misses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.simulation.checks import ViolationError
from tests.simulation.world import World

from trainmover.commands import MigrateRequest
from trainmover.events.executor import PlanSwitched, StepBroken
from trainmover.events.machine import MachineLost, MachineRegistered
from trainmover.events.migration import MigrationApproved, MigrationCommitted
from trainmover.protocol.requests import AbortRequest


class Stage(World):
    """A job that has formed, in fair weather, with two warm standbys."""

    def __init__(self, *, slots: int = 4) -> None:
        super().__init__(3, tracing=True, slots=slots, spare=2, step_s=0.2, fair=True)
        assert self.sim.run(until_s=20.0, done=lambda: self.checks.step >= 8)
        self.wait(5.0)

    def wait(self, seconds: float) -> None:
        self.sim.run(until_s=self.sim.now_s + seconds)

    def until(self, kind: type, count: int = 1, within_s: float = 60.0) -> None:
        def found() -> bool:
            return sum(isinstance(one.payload, kind) for one in self.scene.bus.facts) >= count

        done = self.sim.run(until_s=self.sim.now_s + within_s, done=found)
        assert done, self.sim.trace()

    def count(self, kind: type) -> int:
        return sum(isinstance(one.payload, kind) for one in self.scene.bus.facts)

    def leaver_handed_over(self) -> None:
        assert self.sim.run(
            until_s=self.sim.now_s + 30.0,
            done=lambda: any(rank.where == "left" for rank in self.fabric.ranks),
        )

    def trains_again(self) -> None:
        goal = self.checks.step + 5
        done = self.sim.run(until_s=self.sim.now_s + 60.0, done=lambda: self.checks.step >= goal)
        assert done, self.sim.trace()


def test_an_abort_that_comes_after_the_vote_breaks_no_step():
    """The joiner waits for state that is on its way: only the leaver knows that they voted."""
    world = Stage()
    world.planner.ask("migrate", MigrateRequest(machine="w-1"))
    world.leaver_handed_over()
    world.planner.ask("abort", AbortRequest(migration="m-0001"))
    world.until(MigrationCommitted)
    assert world.count(StepBroken) == 0
    assert world.checks.calm


def test_a_joiner_that_has_switched_survives_the_next_death():
    """The next plan gives it a slot like any other; its agent had not seen the commit yet."""
    world = Stage()
    world.planner.ask("migrate", MigrateRequest(machine="w-3"))
    world.until(PlanSwitched, count=4)
    world.harm("w-1")
    world.machines["w-1"].kill()
    world.trains_again()
    plans = [
        one.payload.plan
        for one in world.scene.bus.facts
        if isinstance(one.payload, MigrationApproved)
    ]
    assert len(plans) == 2, world.sim.trace()


def test_a_machine_that_starts_over_before_anybody_missed_it_is_replaced():
    """Its telemetry must not pass for that of its earlier incarnation."""
    world = Stage()
    world.harm("w-2")
    world.machines["w-2"].kill(reset=False)
    world.wait(0.5)
    world.machines["w-2"].start()
    world.trains_again()
    membership = world.planner.state.membership
    assert membership is not None
    names = {(one.machine, one.generation) for one in membership.members}
    assert ("w-2", 0) not in names


def test_a_death_in_a_recovery_without_a_detector_is_found_when_it_is_back():
    """It never heard the dead machine, and plans follow each other faster than it would count."""
    world = Stage()
    world.harm("w-0")
    world.planner.process.freeze()
    world.machines["w-0"].kill()
    world.wait(0.2)
    world.detector.kill()
    world.machines["w-1"].kill(reset=False)
    world.planner.process.thaw()
    world.wait(4.0)
    world.detector.start()
    world.trains_again()


def test_a_standby_that_was_cut_off_for_a_while_is_of_use_again():
    world = Stage(slots=3)
    world.scene.bus.cut.add("w-3")
    world.scene.bus.cut.add("w-4")
    world.until(MachineLost, count=2)
    world.scene.bus.heal("w-3")
    world.scene.bus.heal("w-4")
    registered = world.count(MachineRegistered)
    world.until(MachineRegistered, count=registered + 2)
    world.wait(10.0)
    world.harm("w-0")
    world.machines["w-0"].kill()
    world.trains_again()


def test_the_checks_notice_a_lost_step():
    """The simulation is worth nothing when it cannot fail."""
    world = Stage()
    for rank in world.fabric.ranks:
        if rank.linked:
            rank.role = replace(rank.role, committed=rank.role.committed + 1)
    with pytest.raises(ViolationError, match="INV-NO-LOST-STEP"):
        world.wait(5.0)


def test_the_checks_notice_different_bits():
    world = Stage()
    next(rank for rank in world.fabric.ranks if rank.linked).digest += 1
    with pytest.raises(ViolationError, match="INV-SAME-BITS"):
        world.wait(5.0)
