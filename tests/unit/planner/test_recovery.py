from __future__ import annotations

import itertools

import pytest

from trainmover.events import executor, machine
from trainmover.events.migration import JobFailed, JobHeld


def test_a_dead_member_is_replaced_in_the_same_step(world):
    commands = world.failed("w-1")
    plan = world.last_plan()
    assert (plan.kind, plan.from_epoch, plan.epoch) == ("failure", 1, 2)
    assert plan.membership.machine_of(1) == "w-4"
    assert plan.sources == {1: 2}, "the slot after it"
    assert world.recipients("recover", commands) == ["w-0", "w-2", "w-3", "w-4"]
    assert world.recipients("break_step", commands) == ["w-0", "w-2", "w-3"]
    ((name, fence),) = [item for item in world.sent(commands) if item[1].verb == "release"]
    assert (name, fence.then, fence.generation) == ("w-1", "stop", 0)
    assert world.names(commands) == [
        "MigrationProposed",
        "MigrationApproved",
        "MigrationPreparing",
        "MachineLost",
    ]
    for member in ("w-0", "w-2", "w-3"):
        mine = [v for v in world.verbs(commands) if v.startswith(member)]
        assert mine == [f"{member}:break_step", f"{member}:recover"], "in this order"

    world.broken(["w-0", "w-2", "w-3"])
    assert world.names(world.report(executor.PlanSwitched, plan)) == ["MigrationSwitching"]
    commands = world.report(executor.PlanCommitted, plan)
    assert world.names(commands) == ["MigrationCommitted"]
    assert world.recipients("release", commands) == [], "the dead one was fenced already"
    assert world.wait(120) == []


def test_the_same_evidence_twice_changes_nothing(world):
    world.failed("w-1")
    assert world.facts(world.failed("w-1")) == []
    assert world.facts(world.broken(["w-0", "w-2", "w-3"])) == []


def test_the_last_slot_takes_its_state_from_the_first(world):
    world.failed("w-3")
    assert world.last_plan().sources == {3: 0}


def test_ranks_keep_their_local_number_when_choosing_a_source(world_class):
    world = world_class(slots=2, spare=1, ranks=2)
    world.form()
    world.failed("w-0")
    assert world.last_plan().sources == {0: 2, 1: 3}


def test_two_die_at_once(world):
    world.failed("w-1")
    first = world.last_plan()
    commands = world.failed("w-2")
    second = world.last_plan()
    assert second.epoch == first.epoch + 1
    assert second.from_epoch == 1
    assert {m.slot: m.joiner for m in second.moves} == {1: "w-4", 2: "w-5"}
    assert second.sources == {1: 3, 2: 3}
    assert "MigrationFailed" in world.names(commands)
    assert world.recipients("recover", commands) == ["w-0", "w-3", "w-4", "w-5"]
    world.report(executor.PlanCommitted, first)
    assert world.membership.epoch == 1, "a superseded plan commits nothing"
    world.finish(second)
    assert world.membership.epoch == 3


def test_the_joiner_dies_during_recovery(world):
    world.failed("w-1")
    first = world.last_plan()
    world.failed("w-4", epoch=first.epoch)
    second = world.last_plan()
    assert second.epoch == 3
    assert second.moves[0].joiner == "w-5"
    assert second.moves[0].leaver == "w-1"
    world.finish(second)


def test_the_joiner_cannot(world):
    world.failed("w-1")
    first = world.last_plan()
    commands = world.report(executor.PlanFailed, first, ranks=[1])
    assert world.last_plan().moves[0].joiner == "w-5"
    assert world.recipients("release", commands) == ["w-1", "w-4"]
    world.register("w-4", generation=1)
    assert world.verbs()[-1] == "w-4:warm"


def test_a_survivor_cannot_and_nobody_else_died(world):
    world.failed("w-1")
    first = world.last_plan()
    assert world.facts(world.report(executor.PlanFailed, first, ranks=[0])) == []
    world.wait(1.6)
    second = world.last_plan()
    assert second.epoch == first.epoch + 1
    assert second.membership.members == first.membership.members


def test_a_survivor_cannot_because_another_one_died(world):
    world.failed("w-1")
    first = world.last_plan()
    world.report(executor.PlanFailed, first, ranks=[0])
    world.failed("w-2")
    assert {m.slot for m in world.last_plan().moves} == {1, 2}
    assert len(world.plans()) == 2


def test_recovery_plans_are_bounded(world_class):
    world = world_class(max_attempts=3)
    world.form()
    world.failed("w-1")
    for _ in range(6):
        if not world.state.over:
            world.report(executor.PlanFailed, world.last_plan(), ranks=[0])
            world.wait(2.0)
    (failed,) = [p for p in world.facts() if isinstance(p, JobFailed)]
    assert "3 recovery plans" in failed.reason
    assert len(world.plans()) == 3


def test_no_standby_holds_the_job_until_one_is_there(world_class):
    world = world_class(spare=0)
    world.form()
    commands = world.failed("w-1")
    (held,) = [p for p in world.facts(commands) if isinstance(p, JobHeld)]
    assert held.slots == (1,)
    assert world.state.phase == "held"
    assert world.plans() == []
    assert world.facts(world.wait(300)) == []
    world.register("w-9")
    world.warming("w-9")
    assert world.last_plan().moves[0].joiner == "w-9", "a warming one is better than none"
    world.finish(world.last_plan())
    assert world.state.phase == "running"


def test_a_dead_machine_may_come_back_as_its_own_successor(world_class):
    world = world_class(spare=0)
    world.form()
    commands = world.register("w-1", generation=1)
    assert "JobHeld" in world.names(commands), "starting over is dying"
    assert "w-1:warm" in world.verbs(commands)
    world.warming("w-1", generation=1)
    plan = world.last_plan()
    assert plan.membership.members[1].generation == 1
    world.finish(plan)
    assert "w-1:stop" not in world.verbs()


def test_a_ready_standby_is_preferred_to_a_warming_one(world_class):
    world = world_class(spare=2)
    for number in range(6):
        world.register(f"w-{number}")
    world.warming("w-4")
    world.warming("w-5")
    world.ready("w-5", slots=[1])
    world.layouts()
    world.failed("w-1")
    assert world.last_plan().moves[0].joiner == "w-5"


def test_no_replica_fails_the_job_and_says_why(world_class):
    world = world_class(slots=2, spare=1)
    for number in range(3):
        world.register(f"w-{number}")
    world.warming("w-2")
    for rank in range(2):
        world.say(executor.JobLayoutKnown(machine=f"w-{rank}", rank=rank, replicas=(rank,)))
    commands = world.failed("w-1")
    assert world.names(commands) == [
        "MigrationProposed",
        "MigrationRejected",
        "JobFailed",
        "MachineLost",
    ]
    failed = world.facts(commands)[2]
    assert "rank 1" in failed.reason
    assert "checkpoint" in failed.next_step
    assert world.recipients("stop", commands) == ["w-0", "w-1", "w-2"]
    assert world.ask("migrate", machine="w-0")["code"] == "job_over"
    assert world.verbs(world.register("w-7")) == ["w-7:stop"]


def test_everybody_dies(world):
    for number in range(4):
        world.failed(f"w-{number}")
    assert world.state.phase == "failed"


def test_the_step_breaks_everywhere_without_a_culprit(world):
    world.broken()
    assert world.facts(world.wait(1.4)) == []
    world.wait(0.2)
    plan = world.last_plan()
    assert (plan.kind, plan.moves, plan.sources) == ("failure", (), {})
    assert plan.membership.members == world.membership.members
    assert plan.epoch == 2
    world.finish(plan)
    assert world.recipients("release") == []


def test_a_culprit_named_in_time_is_replaced_instead(world):
    world.broken(["w-0", "w-2", "w-3"])
    world.wait(1.0)
    world.failed("w-1")
    assert world.last_plan().moves[0].leaver == "w-1"


def test_ranks_that_did_not_notice_are_told_to_break(world):
    world.broken(["w-0"])
    commands = world.wait(1.6)
    assert len(world.recipients("break_step", commands)) == 4
    world.broken(["w-1", "w-2", "w-3"])
    world.wait(1.6)
    assert world.last_plan().moves == ()


def test_the_recovery_has_a_deadline(world):
    world.failed("w-1")
    first = world.last_plan()
    world.report(executor.PlanSwitched, first, ranks=[0, 2, 3])
    world.wait(31)
    assert "MigrationFailed" in world.names()
    assert world.last_plan().epoch == 3


def test_a_recovery_waits_for_a_survivor_in_a_long_evaluation(world):
    world.failed("w-1")
    first = world.last_plan()
    world.broken(["w-0", "w-2"])
    world.wait(300)
    assert world.plans() == [first]
    world.broken(["w-3"])
    world.wait(25)
    assert world.plans() == [first]
    world.wait(10)
    assert world.last_plan().epoch == 3, "now it is late"


def test_what_follows_the_switch_may_last_as_long_as_it_does(world):
    world.failed("w-1")
    plan = world.last_plan()
    world.broken(["w-0", "w-2", "w-3"])
    world.report(executor.PlanSwitched, plan)
    world.wait(3_600)
    assert world.plans() == [plan]
    world.report(executor.PlanCommitted, plan)
    assert world.names()[-1] == "MigrationCommitted"


def test_a_recovery_of_long_steps_has_longer(world):
    for rank in range(4):
        pace = {"rank": rank, "epoch": 1, "step": 5, "step_s": 100.0 + rank}
        world.say(executor.StepProgress(machine=f"w-{rank}", **pace))
    world.failed("w-1")
    plan = world.last_plan()
    world.broken(["w-0", "w-2", "w-3"])
    world.wait(399)
    assert world.plans() == [plan]
    world.wait(5)
    assert world.last_plan().epoch == 3


def test_a_standby_dies(world):
    world.failed("w-4")
    assert world.names()[-1] == "MachineLost"
    assert world.plans() == []
    world.failed("w-1")
    assert world.last_plan().moves[0].joiner == "w-5"


@pytest.mark.parametrize("switched", [False, True])
def test_a_member_dies_during_a_planned_move(world, switched):
    world.ask("migrate", machine="w-1")
    move = world.last_plan()
    world.report(executor.PlanPrepared, move)
    commands = world.failed("w-2")
    assert world.plans() == [move], "the truth is not known yet"
    assert world.recipients("break_step", commands) == ["w-0", "w-1", "w-3"]
    epoch = move.epoch if switched else 1
    world.broken(["w-0", "w-3"], epoch=epoch)
    if not switched:
        assert world.plans() == [move]
        world.broken(["w-1"])
    plan = world.last_plan()
    assert plan.kind == "failure"
    assert plan.epoch == 3
    phases = {m.id: m.phase for m in world.state.migrations.values()}
    if switched:
        assert phases["m-0001"] == "failed"
        assert plan.from_epoch == 2
        assert plan.membership.machine_of(1) == "w-4"
        assert plan.membership.machine_of(2) == "w-5"
        # The joiner has not said that it has its state: it takes it again.
        assert plan.sources == {1: 3, 2: 3}
    else:
        assert phases["m-0001"] == "aborted"
        assert "w-4:abort_migration" in world.verbs()
        assert plan.from_epoch == 1
        assert plan.membership.machine_of(1) == "w-1"
        assert plan.membership.machine_of(2) == "w-4"
    world.finish(plan)
    released = set(world.recipients("release")) - {"w-2"}
    assert released == ({"w-1"} if switched else set())


def test_the_truth_is_not_waited_for_longer_than_a_second(world):
    world.ask("migrate", machine="w-1")
    world.failed("w-2")
    world.wait(0.9)
    assert len(world.plans()) == 1
    world.wait(0.2)
    assert world.last_plan().kind == "failure"
    assert world.last_plan().from_epoch == 1


def test_a_late_truth_supersedes_the_recovery(world):
    world.ask("migrate", machine="w-1")
    move = world.last_plan()
    world.failed("w-2")
    world.wait(1.1)
    wrong = world.last_plan()
    assert wrong.membership.machine_of(1) == "w-1"
    world.report(executor.PlanSwitched, move, ranks=[0])
    right = world.last_plan()
    assert right.epoch > wrong.epoch
    assert right.membership.machine_of(1) != "w-1"


def test_the_leaver_dies_during_its_own_move(world):
    world.ask("migrate", machine="w-1")
    world.failed("w-1")
    world.broken(["w-0", "w-2", "w-3"])
    plan = world.last_plan()
    assert plan.kind == "failure"
    assert plan.moves[0].leaver == "w-1"
    assert plan.moves[0].joiner in ("w-4", "w-5")


def test_the_leaver_dies_after_the_switch(world):
    world.ask("migrate", machine="w-1")
    move = world.last_plan()
    world.report(executor.PlanSwitched, move)
    world.failed("w-1")
    world.report(executor.PlanCommitted, move)
    assert world.membership == move.membership
    assert world.plans() == [move]


def test_the_joiner_dies_after_the_switch(world):
    world.ask("migrate", machine="w-1")
    move = world.last_plan()
    world.report(executor.PlanSwitched, move)
    world.failed("w-4", epoch=move.epoch)
    plan = world.last_plan()
    assert (plan.from_epoch, plan.epoch) == (2, 3)
    assert plan.moves[0].joiner == "w-5"
    world.finish(plan)
    assert "w-1" in world.recipients("release")


def test_the_slot_goes_back_to_the_leaver_when_nobody_else_is_left(world_class):
    world = world_class(spare=1)
    world.form()
    world.ask("migrate", machine="w-1")
    move = world.last_plan()
    world.report(executor.PlanSwitched, move)
    world.failed("w-4", epoch=move.epoch)
    plan = world.last_plan()
    assert plan.membership.members[1] == world.membership.members[1]
    assert plan.moves[0].joiner == "w-1"
    world.finish(plan)
    assert [m for m in world.recipients("release") if m == "w-1"] == []


def test_a_switch_that_hangs_is_recovered(world):
    world.ask("migrate", machine="w-1")
    move = world.last_plan()
    world.report(executor.PlanSwitched, move, ranks=[0, 2])
    world.wait(31)
    plan = world.last_plan()
    assert plan.kind == "failure"
    assert plan.from_epoch == 2
    assert plan.joining_ranks == {1}


def test_the_job_finishes(world):
    for rank in range(4):
        commands = world.say(
            executor.WorkerFinished(machine=f"w-{rank}", rank=rank, epoch=1, step=20)
        )
    assert world.names(commands) == ["JobFinished"]
    assert len(world.recipients("stop", commands)) == 6
    assert world.failed("w-0") == []


def test_a_machine_that_finished_is_not_replaced(world):
    world.say(executor.WorkerFinished(machine="w-1", rank=1, epoch=1, step=20))
    world.failed("w-1")
    assert world.plans() == []


def test_a_death_after_others_finished_fails_the_job(world):
    world.say(executor.WorkerFinished(machine="w-1", rank=1, epoch=1, step=20))
    world.failed("w-0")
    assert world.state.phase == "failed"


def test_ranks_with_different_numbers_of_batches_fail_the_job(world):
    world.say(executor.WorkerFinished(machine="w-1", rank=1, epoch=1, step=20))
    world.broken(["w-0", "w-2"])
    world.wait(10)
    assert world.state.phase == "running"
    world.broken(["w-3"])
    assert world.state.phase == "running"
    world.wait(10)
    assert world.state.phase == "failed"
    assert "rank 1 ended the program" in world.state.reason
    assert "ranks 0, 2, 3 asked for another step" in world.state.reason


def test_a_finding_in_shadow_mode_moves_nobody(world):
    from trainmover.events.incident import IncidentOpened

    world.say(
        IncidentOpened(
            id="i",
            kind="machine_failed",
            machine="w-1",
            epoch=1,
            confidence=1,
            summary="?",
            detector="new",
            mode="shadow",
        )
    )
    assert world.plans() == []


def test_a_standby_process_exit_cools_the_slot(world):
    world.say(
        machine.WorkerExited(machine="w-4", generation=0, rank=1, epoch=1, exit_code=1, signal=None)
    )
    world.failed("w-1")
    assert world.last_plan().moves[0].joiner == "w-5"


def test_a_plan_that_the_job_went_past_stays_dead(world):
    world.ask("migrate", machine="w-0")
    move = world.last_plan()
    world.failed("w-1")
    world.ask("abort", migration=move.id)
    world.finish(world.last_plan())
    before = world.membership
    world.report(executor.PlanSwitched, move)
    world.report(executor.PlanCommitted, move)
    assert world.state.migrations[move.id].phase == "aborted"
    assert world.membership == before


def test_a_late_truth_ends_the_move_planned_since(world):
    world.ask("migrate", machine="w-1")
    first = world.last_plan()
    world.ask("abort", migration=first.id)
    world.ask("migrate", machine="w-2")
    second = world.last_plan()
    world.finish(first)
    assert world.state.migrations[second.id].phase == "aborted"
    assert world.membership == first.membership


def test_plans_without_a_culprit_come_at_growing_intervals(world):
    """A detector that starts over needs longer than eight hasty plans to find who is dead."""
    began_s = world.now_s
    world.broken()
    times = []
    for _ in range(2000):
        before = len(world.plans())
        world.wait(0.1)
        if len(world.plans()) > before:
            times.append(world.now_s - began_s)
            world.broken(
                [m.machine for m in world.last_plan().membership.members],
                epoch=world.last_plan().epoch,
            )
        if world.state.over:
            break
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert world.state.phase == "failed"
    assert gaps[0] < 2
    assert gaps[-1] > 20
    assert world.now_s - began_s > 60


def test_a_standby_that_was_given_up_may_register_anew(world):
    commands = world.failed("w-5")
    assert world.verbs(commands) == ["w-5:release"]
    ((_, release),) = world.sent(commands)
    assert (release.generation, release.then) == (0, "standby")
    assert world.plans() == []
