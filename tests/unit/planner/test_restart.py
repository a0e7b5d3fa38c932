from __future__ import annotations

from trainmover.events import executor
from trainmover_planner import core
from trainmover_planner.state.effects import PublishFact, Tick


def gist(state):
    return (
        state.phase,
        state.membership,
        {m.id: (m.phase, m.plan) for m in state.migrations.values()},
        state.inventory.quarantined,
        set(state.deaths),
    )


def test_nothing_to_do_after_a_quiet_restart(world):
    before = gist(world.state)
    commands = world.restart()
    assert gist(world.state) == before
    assert world.facts(commands) == []
    assert set(world.verbs(commands)) <= {"w-4:warm", "w-5:warm"} | {
        f"w-{slot}:start" for slot in range(4)
    }


def test_a_move_in_phase_one_is_taken_up(world):
    world.ask("migrate", machine="w-1")
    plan = world.last_plan()
    world.report(executor.PlanPrepared, plan, ranks=[0, 1])
    commands = world.restart()
    assert len(world.recipients("prepare", commands)) == 5
    assert world.facts(commands) == []
    world.report(executor.PlanPrepared, plan, ranks=[2, 3])
    world.finish(plan)
    assert world.membership == plan.membership


def test_a_commit_that_was_not_announced_is_announced(world_class):
    world = world_class(spare=1)
    world.form()
    world.ask("migrate", machine="w-1")
    plan = world.last_plan()
    world.report(executor.PlanSwitched, plan)
    world.report(executor.PlanCommitted, plan)
    commands = world.restart(lose=1)
    assert world.names(commands) == ["MigrationCommitted"]
    assert world.recipients("release", commands) == ["w-1"]
    assert world.membership == plan.membership


def test_a_release_that_may_not_have_left_is_sent_again_with_its_id(world):
    world.ask("migrate", machine="w-1")
    world.finish(world.last_plan())
    first = [c for c in world.log if getattr(c, "id", "").endswith("release")]
    again = [c for c in world.restart() if getattr(c, "id", "").endswith("release")]
    assert [c.id for c in again] == [c.id for c in first]
    assert again[0].command == first[0].command


def test_a_recovery_is_taken_up(world):
    world.failed("w-1")
    plan = world.last_plan()
    world.report(executor.PlanSwitched, plan, ranks=[0])
    commands = world.restart()
    assert world.recipients("recover", commands) == ["w-0", "w-2", "w-3", "w-4"]
    assert world.facts(commands) == []
    world.finish(plan)


def test_a_death_during_the_absence_is_recovered_at_once(world):
    stream = list(world.stream)
    world.failed("w-1")
    world.stream = [*stream, next(i for i in reversed(world.stream) if i[1].source == "/detector")]
    commands = world.restart()
    plan = world.last_plan()
    assert world.recipients("recover", commands) == ["w-0", "w-2", "w-3", "w-4"]
    assert plan.epoch > 2, "the epoch of the plan that was lost is not used again"
    assert plan.id != "m-0001"


def test_a_proposal_without_a_plan_is_given_up(world):
    world.ask("migrate", machine="w-1")
    world.stored.clear()  # it died before the commands left
    world.restart(lose=2)
    assert world.state.migrations["m-0001"].phase == "aborted"
    assert world.ask("migrate", machine="w-1")["ok"]


def test_reports_stored_before_the_plan_they_are_about(world):
    """Recovery commands leave before their facts, so ranks may answer first."""
    world.failed("w-1")
    plan = world.last_plan()
    before = len(world.stream)
    world.report(executor.PlanSwitched, plan, ranks=[0, 2])
    late = world.stream[before:]
    mine = [item for item in world.stream[:before] if item[1].source == "/planner"]
    tail = [item for item in mine if "m-0001" in item[1].id]
    head = [item for item in world.stream[:before] if item not in tail]
    world.stream = [*head, *(item for item in late if item[1].source != "/planner"), *tail]
    world.restart()
    one = world.state.migrations["m-0001"]
    assert one.phase == "switching"
    assert {rank for _, rank in one.switched} == {0, 2}


def test_a_quarantine_survives(world):
    world.straggler("w-2")
    world.finish(world.last_plan())
    world.restart()
    world.register("w-2", generation=1)
    assert "w-2:warm" not in world.verbs()


def test_planners_that_die_again_and_again_never_issue_an_epoch_twice(world):
    stream = list(world.stream)
    epochs = []
    for _ in range(5):
        world.stream = list(stream)
        world.restart()
        world.failed("w-1")  # the plan leaves, its facts are lost
        epochs.append(world.last_plan().epoch)
    assert len(set(epochs)) == 5


def test_a_finished_job_stays_finished(world):
    for rank in range(4):
        world.say(executor.WorkerFinished(machine=f"w-{rank}", rank=rank, epoch=1, step=9))
    commands = world.restart()
    assert world.state.phase == "finished"
    assert world.facts(commands) == []
    assert len(world.recipients("stop", commands)) == 6


def test_every_fact_has_an_id_of_its_own(world):
    world.failed("w-1")
    world.failed("w-2")
    world.finish(world.last_plan())
    ids = [c.id for c in world.log if isinstance(c, PublishFact)]
    assert len(ids) == len(set(ids))


def test_a_planner_that_knows_nothing_waits(world_class):
    state, commands = core.resume(core.initial("demo"), 5.0)
    assert commands == ()
    assert core.next_wake_s(state) is None
    assert core.step(state, Tick(), 6.0)[1] == ()


def forget(world, *names):
    """These facts were pushed out of the bus."""
    kept = [each for each in world.stream if type(each[1].payload).__name__ not in names]
    assert len(kept) < len(world.stream)
    world.stream = kept


def test_a_commit_is_known_without_the_reports_it_came_from(world):
    world.ask("migrate", machine="w-1")
    plan = world.last_plan()
    world.finish(plan)
    forget(world, "PlanPrepared", "PlanSwitched", "PlanCommitted")
    before = gist(world.state)
    commands = world.restart()
    assert gist(world.state) == before
    assert world.facts(commands) == []


def test_the_membership_is_that_of_the_latest_commit_when_all_before_it_is_forgotten(world):
    world.ask("migrate", machine="w-1")
    world.finish(world.last_plan())
    world.ask("migrate", machine="w-2")
    world.finish(world.last_plan())
    latest = world.membership
    forget(world, "JobFormed", "MigrationApproved", "MigrationProposed", "PlanCommitted")
    world.restart()
    assert world.membership == latest
    assert world.state.phase == "running"


def test_later_plans_follow_a_membership_whose_plan_is_forgotten(world):
    world.ask("migrate", machine="w-1")
    world.finish(world.last_plan())
    forget(world, "MigrationApproved", "MigrationProposed", "PlanCommitted")
    world.ask("migrate", machine="w-2")
    plan = world.last_plan()
    world.finish(plan)
    world.restart()
    assert world.membership == plan.membership
