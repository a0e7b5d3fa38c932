"""Operators pause automation, approve and reject moves, and keep machines out."""

from __future__ import annotations

import pytest
from tests.unit.planner.conftest import World

from trainmover.events import machine, migration, operator
from trainmover.events.executor import PlanPrepared
from trainmover.events.incident import IncidentClosed


@pytest.fixture
def asking() -> World:
    """A planner that asks before it moves a straggler."""
    world = World(automation="approval", cooldown_s=5.0)
    world.form()
    return world


def proposal(world: World) -> str:
    world.straggler("w-1")
    (waiting,) = world.state.waiting
    return waiting.id


def test_a_proposed_move_waits_and_sends_nothing(asking: World) -> None:
    commands = asking.straggler("w-1")
    assert asking.names(commands) == ["MigrationProposed"]
    assert asking.verbs(commands) == []
    assert asking.wait(100) == []
    assert asking.state.flight is None


def test_approval_starts_the_move_and_says_who_and_why(asking: World) -> None:
    one = proposal(asking)
    answer = asking.ask("approve", migration=one, reason="disk errors", requested_by="ada")
    assert (answer["ok"], answer["migration"]) == (True, one)
    approved = next(f for f in asking.facts() if isinstance(f, migration.MigrationApproved))
    assert (approved.approved_by, approved.approval) == ("ada", "disk errors")
    plan = asking.last_plan()
    asking.report(PlanPrepared, plan)
    asking.finish(plan)
    assert asking.membership.slot_of_machine("w-1") is None


def test_approving_dry_shows_the_plan_and_moves_nobody(asking: World) -> None:
    one = proposal(asking)
    before = len(asking.facts())
    answer = asking.ask("approve", migration=one, dry_run=True)
    assert answer["migration"] is None
    assert answer["plan"]["moves"][0]["leaver"] == "w-1"
    assert len(asking.facts()) == before
    assert [each.id for each in asking.state.waiting] == [one]


def test_a_rejected_move_is_not_proposed_again_for_the_same_incident(asking: World) -> None:
    one = proposal(asking)
    assert asking.ask("reject", migration=one, reason="known", requested_by="ada")["ok"]
    rejected = next(f for f in asking.facts() if isinstance(f, migration.MigrationRejected))
    assert (rejected.rejected_by, rejected.reason) == ("ada", "known")
    asking.wait(100)
    assert asking.state.waiting == []
    asking.restart()
    asking.wait(100)
    assert asking.state.waiting == [], "a planner that starts over remembers"
    asking.straggler("w-1")
    assert len(asking.state.waiting) == 1, "another incident is another question"


def test_an_incident_that_closes_withdraws_its_proposal(asking: World) -> None:

    one = proposal(asking)
    asking.say(IncidentClosed(id="i-1", reason="keeps up again"), "/detector")
    assert asking.state.migrations[one].phase == "aborted"
    refused = asking.ask("approve", migration=one)
    assert (refused["ok"], refused["code"]) == (False, "not_waiting")


def test_a_proposal_outlives_the_planner_and_a_crash_of_another_machine(asking: World) -> None:
    one = proposal(asking)
    asking.restart()
    assert [each.id for each in asking.state.waiting] == [one]
    asking.failed("w-3")
    asking.broken(["w-0", "w-1", "w-2"])
    asking.wait(5)
    recovery = asking.last_plan()
    assert recovery.kind == "failure"
    assert asking.ask("approve", migration=one)["code"] == "migration_in_flight"

    asking.report(PlanPrepared, recovery)
    asking.finish(recovery)
    answer = asking.ask("approve", migration=one)
    assert answer["ok"], answer
    assert answer["plan"]["from_epoch"] == recovery.epoch


def test_waiting_moves_do_not_keep_an_operator_from_moving(asking: World) -> None:
    proposal(asking)
    assert asking.ask("migrate", machine="w-2")["ok"]


def test_paused_automation_leaves_stragglers_and_resumes(world: World) -> None:
    assert world.ask("automation", mode="paused", reason="night", requested_by="ada")["ok"]
    assert "MigrationProposed" not in world.names(world.straggler("w-1"))
    (changed,) = [f for f in world.facts() if isinstance(f, operator.AutomationChanged)]
    assert (changed.mode, changed.reason, changed.requested_by) == ("paused", "night", "ada")
    again = world.ask("automation", mode="paused")
    assert (again["code"], "ada: night" in again["reason"]) == ("no_change", True)
    world.restart()
    assert world.ask("status")["automation"]["mode"] == "paused"
    world.ask("automation", mode="automatic")
    assert world.state.flight is not None, "what was put off is done now"


def test_paused_automation_still_replaces_the_dead(world: World) -> None:
    world.ask("automation", mode="paused")
    world.failed("w-1")
    world.broken(["w-0", "w-2", "w-3"])
    world.wait(5)
    assert world.last_plan().kind == "failure"


def test_dry_runs_change_nothing(world: World) -> None:
    before = (world.state, len(world.log))
    for verb, fields in (
        ("automation", {"mode": "paused"}),
        ("quarantine", {"machine": "w-4"}),
    ):
        answer = world.ask(verb, dry_run=True, **fields)
        assert answer["ok"], answer
        assert answer["words"]
    assert world.state == before[0]
    assert world.names(world.log[before[1] :]) == []


def test_a_quarantined_standby_takes_no_slot_until_it_is_let_out(world: World) -> None:
    assert world.ask("quarantine", machine="w-4", reason="ECC errors", requested_by="ada")["ok"]
    (fact,) = [f for f in world.facts() if isinstance(f, machine.MachineQuarantined)]
    assert (fact.reason, fact.requested_by) == ("ECC errors", "ada")
    assert world.ask("migrate", machine="w-1", to=["w-4"])["code"] == "not_a_standby"
    world.restart()
    assert "w-4" in world.state.inventory.quarantined
    assert world.ask("quarantine", machine="w-4")["code"] == "no_change"
    assert world.ask("unquarantine", machine="w-4", reason="replaced", requested_by="ada")["ok"]
    (freed,) = [f for f in world.facts() if isinstance(f, operator.MachineUnquarantined)]
    assert freed.ready_slots == (0, 1, 2, 3)
    world.restart()
    assert world.ask("migrate", machine="w-1", to=["w-4"])["ok"]


def test_a_machine_moved_away_by_policy_can_be_let_out(world: World) -> None:

    world.straggler("w-1")
    plan = world.last_plan()
    world.report(PlanPrepared, plan)
    world.finish(plan)
    assert "w-1" in world.state.inventory.quarantined
    assert world.ask("unquarantine", machine="w-1")["words"].endswith("started anew")
    world.restart()
    assert "w-1" not in world.state.inventory.quarantined, "released stays released"
    world.register("w-1", generation=1)
    assert "w-1:warm" in world.verbs()


@pytest.mark.parametrize(
    ("verb", "fields", "code"),
    [
        ("quarantine", {"machine": "w-1"}, "in_slot"),
        ("quarantine", {"machine": "nobody"}, "unknown_machine"),
        ("unquarantine", {"machine": "w-4"}, "not_quarantined"),
        ("approve", {"migration": "m-9"}, "unknown_migration"),
        ("reject", {"migration": "m-9"}, "unknown_migration"),
        ("automation", {"mode": "sometimes"}, "malformed"),
        ("automation", {"mode": "automatic"}, "no_change"),
    ],
)
def test_refusals_say_why_and_what_next(
    world: World, verb: str, fields: dict[str, str], code: str
) -> None:
    before = world.state
    answer = world.ask(verb, **fields)
    assert (answer["ok"], answer["code"]) == (False, code)
    assert answer["reason"]
    assert answer["next_step"]
    assert world.state == before


def test_a_joiner_cannot_be_put_into_quarantine(world: World) -> None:
    joiner = world.ask("migrate", machine="w-1")["plan"]["moves"][0]["joiner"]
    assert world.ask("quarantine", machine=joiner)["code"] == "joining"


def test_an_abort_says_who(world: World) -> None:
    one = world.ask("migrate", machine="w-1", requested_by="ada")["migration"]
    world.ask("abort", migration=one, reason="wrong one", requested_by="bob")
    aborted = next(f for f in world.facts() if isinstance(f, migration.MigrationAborted))
    assert (aborted.aborted_by, aborted.reason) == ("bob", "wrong one")
