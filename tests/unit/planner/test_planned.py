from __future__ import annotations

import pytest

from trainmover.events import executor, machine


def test_an_operator_moves_a_machine(world):
    reply = world.ask("migrate", machine="w-1", reason="maintenance")
    assert reply["ok"]
    assert reply["migration"] == "m-0001"
    plan = world.last_plan()
    assert (plan.kind, plan.from_epoch, plan.epoch) == ("planned", 1, 2)
    assert plan.membership.machine_of(1) == "w-4"
    assert plan.sources == {1: 1}
    assert world.recipients("prepare") == ["w-0", "w-1", "w-2", "w-3", "w-4"]
    assert world.names()[-3:] == [
        "MigrationProposed",
        "MigrationApproved",
        "MigrationPreparing",
    ]

    assert world.names(world.report(executor.PlanPrepared, plan)) == ["MigrationReady"]
    assert world.names(world.report(executor.PlanSwitched, plan)) == ["MigrationSwitching"]
    assert world.membership.epoch == 1, "nobody committed yet"
    commands = world.report(executor.PlanCommitted, plan)
    assert world.names(commands) == ["MigrationCommitted"]
    (name, release), (other, warm) = world.sent(commands)
    assert (name, release.verb, release.then) == ("w-1", "release", "standby")
    assert (other, warm.verb) == ("w-5", "warm"), "it learns who fills the slots now"
    assert warm.membership == plan.membership
    assert (release.generation, release.epoch) == (0, 2)
    assert world.membership == plan.membership
    (committed,) = world.facts(commands)
    assert committed.step == 10
    assert committed.phases_s == {"links": 0.001}

    commands = world.register("w-1", generation=1)
    assert world.verbs(commands) == ["w-1:warm"], "the leaver is a standby now"


def test_reports_in_any_order_and_twice_commit_once(world):
    world.ask("migrate", machine="w-1")
    plan = world.last_plan()
    for kind in (executor.PlanCommitted, executor.PlanSwitched, executor.PlanPrepared) * 2:
        world.report(kind, plan)
    assert world.names().count("MigrationCommitted") == 1
    assert world.names().count("MigrationSwitching") == 1
    assert world.recipients("release") == ["w-1"]


@pytest.mark.parametrize("again", [False, True])
def test_a_job_may_end_with_the_step_that_commits_a_move(world, again):
    """The ranks say that they ended before the last of them says that it committed."""
    world.ask("migrate", machine="w-1")
    plan = world.last_plan()
    for kind in (executor.PlanPrepared, executor.PlanSwitched):
        world.report(kind, plan)
    for rank in range(4):
        world.say(
            executor.WorkerFinished(
                machine=plan.membership.machine_of(rank), rank=rank, epoch=2, step=11
            )
        )
    assert world.names()[-1] == "JobFinished"
    assert world.names(world.report(executor.PlanCommitted, plan)) == ["MigrationCommitted"]
    if again:
        world.restart()
    assert world.state.phase == "finished"


def test_a_straggler_is_moved_and_quarantined(world):
    world.straggler("w-2")
    plan = world.last_plan()
    assert plan.moves[0].leaver == "w-2"
    world.report(executor.PlanPrepared, plan)
    world.finish(plan)
    assert any(
        isinstance(p, machine.MachineQuarantined) and p.machine == "w-2" for p in world.facts()
    )
    ((_, release),) = [item for item in world.sent() if item[1].verb == "release"]
    assert release.then == "stop"
    world.register("w-2", generation=1)
    assert "w-2:warm" not in world.verbs()


def test_one_trace_from_the_incident_to_the_commit(world):
    world.straggler("w-2")
    world.finish(world.last_plan())
    traces = {
        command.trace.get("traceparent")
        for command in world.log
        if type(getattr(command, "payload", None)).__name__.startswith("Migration")
    }
    assert len(traces) == 1
    assert None not in traces


def test_one_planned_move_at_a_time_and_a_cooldown(world):
    world.straggler("w-2")
    first = world.last_plan()
    world.straggler("w-3")
    assert world.plans() == [first]
    world.finish(first)
    assert world.last_plan().moves[0].leaver == "w-3"
    second = world.last_plan()
    world.finish(second)
    assert second.epoch == 3


def test_a_reserve_is_kept_for_crashes(world_class):
    world = world_class(keep_reserve=2)
    world.form()
    commands = world.straggler("w-2")
    (rejected,) = [p for p in world.facts(commands) if type(p).__name__ == "MigrationRejected"]
    assert rejected.code == "reserve"
    assert world.wait(60) == []
    assert world.ask("migrate", machine="w-2")["ok"], "an operator may use it"


def test_no_automation(world_class):
    world = world_class(automation="paused")
    world.form()
    world.straggler("w-2")
    assert world.plans() == []


def test_dry_run_changes_nothing(world):
    before = world.state
    reply = world.ask("migrate", machine="w-1", dry_run=True)
    assert reply["migration"] is None
    assert reply["plan"]["membership"]["members"][1]["machine"] == "w-4"
    assert world.state == before


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"machine": "nobody"}, "unknown_machine"),
        ({"machine": "w-4"}, "not_in_slot"),
        ({"machine": "w-1", "to": "w-2"}, "not_a_standby"),
        ({"machine": "w-1", "to": "nobody"}, "not_a_standby"),
    ],
)
def test_refusals_change_nothing(world, fields, code):
    before, said = world.state, len(world.facts())
    reply = world.ask("migrate", **fields)
    assert (reply["ok"], reply["code"]) == (False, code)
    assert reply["reason"]
    assert reply["next_step"]
    assert world.state == before
    assert len(world.facts()) == said


def test_refusals_that_depend_on_the_job(world_class):
    world = world_class(slots=2, spare=1)
    assert world.ask("migrate", machine="w-0")["code"] == "job_not_formed"
    for number in range(2):
        world.register(f"w-{number}")
    world.wait(2.0)
    assert world.ask("migrate", machine="w-0")["code"] == "no_standby"
    world.register("w-2")
    world.warming("w-2")
    reply = world.ask("migrate", machine="w-0")
    assert reply["code"] == "standby_not_ready"
    assert "w-2" in reply["reason"]
    world.ready("w-2", slots=[1])
    assert world.ask("migrate", machine="w-0")["code"] == "standby_not_ready"
    assert world.ask("migrate", machine="w-1", to="w-2")["ok"]
    assert world.ask("migrate", machine="w-1")["code"] == "already_migrating"
    assert world.ask("migrate", machine="w-0")["code"] == "migration_in_flight"
    assert world.ask("nonsense")["code"] == "unknown_request"
    assert world.ask("abort")["code"] == "malformed"


def test_an_operator_aborts(world):
    world.ask("migrate", machine="w-1")
    assert world.ask("abort", migration="m-0001")["ok"]
    assert world.recipients("abort_migration") == ["w-0", "w-1", "w-2", "w-3", "w-4"]
    assert world.ask("abort", migration="m-0001")["code"] == "too_late"
    assert world.ask("abort", migration="m-0099")["code"] == "unknown_migration"
    assert world.ask("migrate", machine="w-1")["plan"]["membership"]["epoch"] == 3


def test_phase_one_has_a_deadline(world):
    world.ask("migrate", machine="w-1")
    world.wait(59)
    assert world.state.migrations["m-0001"].phase == "preparing"
    commands = world.wait(2)
    assert "MigrationAborted" in world.names(commands)
    assert len(world.recipients("abort_migration", commands)) == 5
    assert world.membership.epoch == 1


def test_a_rank_that_cannot_prepare_aborts_the_move(world):
    world.ask("migrate", machine="w-1")
    commands = world.report(executor.PlanFailed, world.last_plan(), ranks=[1])
    assert "MigrationAborted" in world.names(commands)
    assert world.ask("migrate", machine="w-1")["ok"]


def test_the_joiner_dies_before_the_switch(world):
    world.ask("migrate", machine="w-1")
    commands = world.say(
        machine.WorkerExited(machine="w-4", generation=0, rank=1, epoch=2, exit_code=None, signal=9)
    )
    assert "MigrationAborted" in world.names(commands)
    assert world.ask("migrate", machine="w-1")["plan"]["moves"][0]["joiner"] == "w-5"


def test_an_abort_that_lost_against_the_vote_is_taken_back(world):
    world.ask("migrate", machine="w-1")
    plan = world.last_plan()
    world.ask("abort", migration=plan.id)
    world.finish(plan)
    assert world.names()[-3:] == [
        "MigrationAborted",
        "MigrationSwitching",
        "MigrationCommitted",
    ]
    assert world.membership == plan.membership
    assert world.recipients("release") == ["w-1"]


def test_a_standby_that_loses_a_process_is_not_ready_for_that_slot(world):
    world.warming("w-4", slots=[0, 2, 3])
    assert world.ask("migrate", machine="w-1", to="w-4")["code"] == "standby_not_ready"
    assert world.ask("migrate", machine="w-0", to="w-4")["ok"]


def test_a_standby_that_keeps_few_slots_warm_warms_up_for_the_move(world):
    world.register("w-6", warm_limit=1)
    world.warming("w-6")
    assert world.ask("migrate", machine="w-1", to="w-6")["code"] == "standby_not_ready"
    world.ready("w-6", slots=[0])
    assert world.ask("migrate", machine="w-1", to="w-6", dry_run=True)["ok"]
    assert world.ask("migrate", machine="w-1")["ok"]
    assert world.last_plan().membership.machine_of(1) == "w-4", "one that is warm comes first"


def test_status(world):
    world.ask("migrate", machine="w-1")
    reply = world.ask("status")
    assert (reply["phase"], reply["epoch"]) == ("running", 1)
    roles = {m["machine"]: m["role"] for m in reply["machines"]}
    assert roles == dict.fromkeys(["w-0", "w-1", "w-2", "w-3"], "member") | {
        "w-4": "joining",
        "w-5": "standby",
    }
    assert reply["migrations"][0]["phase"] == "preparing"
    assert reply["standbys"] == ["w-5"]


def test_a_status_does_not_grow_with_the_age_of_the_job(world):
    for number in range(1, 41):
        assert world.ask("migrate", machine="w-1")["ok"]
        assert world.ask("abort", migration=f"m-{number:04}")["ok"]
    told = [one["migration"] for one in world.ask("status")["migrations"]]
    assert told == [f"m-{number:04}" for number in range(9, 41)]
