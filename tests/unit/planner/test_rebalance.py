"""Rebalancing: the slowest machine is exchanged for a better standby, every so often."""

from __future__ import annotations

import json

import pytest

from trainmover.events.incident import IncidentClosed, IncidentUpdated
from trainmover.events.machine import MachineQuarantined
from trainmover.events.migration import MigrationApproved, MigrationProposed, MigrationRejected
from trainmover.events.operator import PolicyChanged, PolicyCompared
from trainmover.policy import Policy, Rebalance, Rule

EVERY_S = 600.0
DAY_S = 86_400.0


@pytest.fixture
def make(world_class):
    def make(*, at_most: int = 1, least: float = 0.03, **policy):
        declared = Rebalance(every_s=EVERY_S, at_most=at_most, least=least)
        world = world_class(spare=3, **{"cooldown_s": 0, "rebalance": declared, **policy})
        world.form()
        return world

    return make


def again(world, lateness: float) -> list:
    """The detector finds the same machine once more."""
    fact = IncidentUpdated(
        id=f"i-{world.incidents}",
        confidence=0.9,
        summary="again",
        evidence={"lateness": lateness},
    )
    return world.say(fact, "/detector")


def over(world, number: int | None = None) -> list:
    """The detector closes an incident."""
    id = f"i-{world.incidents if number is None else number}"
    return world.say(IncidentClosed(id=id, reason="over"), "/detector")


def settle(world) -> None:
    """The move is carried out; who left starts over and is a standby again."""
    plan = world.last_plan()
    world.finish(plan)
    for move in plan.moves:
        host = world.state.inventory.get(move.leaver)
        generation = host.machine.generation + 1
        world.register(move.leaver, generation)
        world.warming(move.leaver, generation)
        world.ready(move.leaver, generation)


def moves(world, commands=None) -> list[tuple[str, str]]:
    """Who was replaced by whom."""
    plans = [one.plan for one in world.facts(commands) if isinstance(one, MigrationApproved)]
    return [(move.leaver, move.joiner) for plan in plans for move in plan.moves]


def refusals(world, commands=None) -> list[str]:
    return [one.code for one in world.facts(commands) if isinstance(one, MigrationRejected)]


# -- what is exchanged ----------------------------------------------------------------------------


def test_the_slowest_is_exchanged_and_the_cause_says_so(make):
    world = make()
    commands = world.slowest("w-2", 0.08)
    assert moves(world, commands) == [("w-2", "w-4")]
    (proposed,) = [one for one in world.facts(commands) if isinstance(one, MigrationProposed)]
    assert proposed.cause == "rebalance: w-2 is the slowest"
    assert proposed.requested_by == "policy"
    assert proposed.forecast.gain_s == pytest.approx(0.08 * 3_600)
    assert world.last_plan().forecast == proposed.forecast


def test_who_leaves_stays_a_standby(make):
    world = make()
    world.slowest("w-2", 0.08)
    settle(world)
    assert not [one for one in world.facts() if isinstance(one, MachineQuarantined)]
    (release,) = [one for name, one in world.sent() if name == "w-2" and one.verb == "release"]
    assert release.then == "standby"
    assert [one for name, one in world.sent() if name == "w-2"][-1].verb == "warm"


@pytest.mark.parametrize("summary", ["it is slow", "rebalance: so a detector says"])
def test_who_leaves_for_another_reason_is_quarantined_whatever_its_summary_says(make, summary):
    world = make()
    world.straggler("w-2", summary=summary)
    settle(world)
    assert [one.machine for one in world.facts() if isinstance(one, MachineQuarantined)] == ["w-2"]


def test_without_a_declaration_nobody_is(make):
    world = make(rebalance=None)
    assert world.slowest("w-2", 0.08) == []
    policy = Policy.model_validate({**world.policy.model_dump(), "rebalance": {"every_s": 60}})
    commands = world.do(PolicyChanged(policy=policy, source="policy.yaml"))
    assert moves(world, commands) == [("w-2", "w-4")]


@pytest.mark.parametrize("lateness", [None, 0.0, 0.029])
def test_who_is_late_by_less_than_declared_stays(make, lateness):
    world = make()
    assert world.slowest("w-2", lateness) == []
    assert world.wait(EVERY_S) == []


def test_a_move_that_does_not_pay_is_refused_once(make):
    world = make(horizon_s=100)
    assert refusals(world, world.slowest("w-2", 0.08)) == ["does_not_pay"]
    (refused,) = [one for one in world.facts() if isinstance(one, MigrationRejected)]
    assert refused.cause.startswith("rebalance: ")
    assert again(world, 0.08) == []


def test_only_so_many_within_the_interval(make):
    world = make()
    world.slowest("w-2", 0.08)
    settle(world)
    assert moves(world, world.slowest("w-1", 0.07)) == []
    assert moves(world, world.wait(EVERY_S / 2)) == []
    assert moves(world, world.wait(EVERY_S / 2)) == [("w-1", "w-5")]


def test_two_where_two_are_declared_one_after_the_other(make):
    world = make(at_most=2)
    world.slowest("w-2", 0.08)
    world.slowest("w-1", 0.07)
    world.slowest("w-0", 0.06)
    assert moves(world) == [("w-2", "w-4")]
    settle(world)
    assert moves(world) == [("w-2", "w-4"), ("w-1", "w-5")]
    settle(world)
    assert len(moves(world)) == 2


def test_a_finding_that_is_not_repeated_moves_nobody_later(make):
    world = make(keep_reserve=3)
    assert refusals(world, world.slowest("w-2", 0.08)) == ["reserve"]
    world.wait(3 * EVERY_S + 1)
    relaxed = {**world.policy.model_dump(), "keep_reserve": 0}
    policy = Policy.model_validate(relaxed)
    assert moves(world, world.do(PolicyChanged(policy=policy, source="x"))) == []
    assert moves(world, again(world, 0.08)) == [("w-2", "w-4")]


def test_whom_another_incident_is_about_is_left_to_it(make):
    world = make(rules=(Rule(kind=("straggler",), then="wait"),))
    world.straggler("w-2")
    assert moves(world, world.slowest("w-2", 0.2)) == []
    assert moves(world, over(world, 1)) == [("w-2", "w-4")]


# -- no flapping ----------------------------------------------------------------------------------


def exchanged(world) -> None:
    """w-2 has left its slot, late by 8 % of a step; the other standbys are gone."""
    world.slowest("w-2", 0.08)
    settle(world)
    over(world)
    for name in ("w-5", "w-6"):
        assert world.ask("quarantine", machine=name, reason="x", requested_by="ada")["ok"]
    world.wait(3 * EVERY_S)


@pytest.mark.parametrize("lateness", [0.04, 0.08, 0.10])
def test_who_was_as_slow_does_not_come_back(make, lateness):
    world = make()
    exchanged(world)
    commands = world.slowest("w-4", lateness)
    assert refusals(world, commands) == ["no_better_standby"]
    assert world.facts(world.wait(10 * EVERY_S)) == []


def test_who_was_less_slow_comes_back_and_saves_the_difference(make):
    world = make()
    exchanged(world)
    assert moves(world, world.slowest("w-4", 0.2)) == [("w-4", "w-2")]
    assert world.last_plan().forecast.lateness == pytest.approx(0.12)


@pytest.mark.parametrize(("lateness", "again"), [(0.06, 0), (0.1, 0), (0.04, 1), (0.12, 1)])
def test_a_slot_that_is_as_late_with_another_machine_is_left_alone(make, lateness, again):
    world = make()
    world.slowest("w-2", 0.08)
    settle(world)
    over(world)
    world.wait(EVERY_S)
    assert len(moves(world, world.slowest("w-4", lateness))) == again
    if not again:
        assert moves(world, world.wait(2 * EVERY_S)) == []
        reply = world.ask("policy", incident=f"i-{world.incidents}")
        (check,) = [one for one in reply["explanation"]["checks"] if one["what"] == "rebalance"]
        assert check["words"].endswith("with the machine before, too: it is not the machine")


def test_it_is_remembered_by_a_planner_that_starts_over(make):
    world = make()
    exchanged(world)
    world.restart()
    assert refusals(world, world.slowest("w-4", 0.08)) == ["no_better_standby"]
    assert [(one.at_s, one.slot) for one in world.state.lately.exchanged] == [(100.0, 2)]


def test_whom_an_operator_lets_back_in_is_measured_anew(make):
    world = make()
    exchanged(world)
    for verb in ("quarantine", "unquarantine"):
        assert world.ask(verb, machine="w-2", reason="new fan", requested_by="ada")["ok"]
    assert moves(world, world.slowest("w-4", 0.08)) == [("w-4", "w-2")]


def test_it_is_forgotten_after_a_day(make):
    world = make()
    exchanged(world)
    world.wait(DAY_S)
    assert moves(world, world.slowest("w-4", 0.08)) == [("w-4", "w-2")]


def test_it_is_remembered_although_another_is_the_slowest_while_it_leaves(make):
    world = make()
    world.slowest("w-2", 0.08)
    over(world)
    settle(world)
    world.wait(3 * EVERY_S)
    for name in ("w-5", "w-6"):
        assert world.ask("quarantine", machine=name, reason="x", requested_by="ada")["ok"]
    assert refusals(world, world.slowest("w-4", 0.08)) == ["no_better_standby"]


def test_a_crash_takes_another_standby_first(make):
    world = make()
    world.slowest("w-2", 0.08)
    settle(world)
    world.wait(4_000)
    for name in ("w-5", "w-6"):
        world.register(name, 1)  # younger than w-2 by now
        world.warming(name, 1)
        world.ready(name, 1)
    world.failed("w-1")
    assert world.last_plan().moves[0].joiner == "w-5"
    told = {one.machine: one.costs.get("slow") for one in world.last_plan().candidates}
    assert told["w-2"] == 400
    assert told["w-5"] is None


# -- the ways of all moves ------------------------------------------------------------------------


def test_an_operator_is_asked_where_that_is_declared(make):
    world = make(automation="approval")
    commands = world.slowest("w-2", 0.08)
    assert world.names(commands) == ["MigrationProposed"]
    assert world.slowest("w-1", 0.07) == [], "one within the interval, asked for or not"
    (one,) = [fact.migration for fact in world.facts() if isinstance(fact, MigrationProposed)]
    assert world.ask("approve", migration=one, reason="", requested_by="ada")["ok"]
    assert moves(world) == [("w-2", "w-4")]
    settle(world)
    assert world.names(world.wait(EVERY_S - 1)) == []
    assert world.names(world.wait(2)) == ["MigrationProposed"]


def test_a_proposal_is_withdrawn_when_the_finding_is(make):
    world = make(automation="approval")
    world.slowest("w-2", 0.08)
    assert "MigrationAborted" in world.names(over(world))


def test_rules_are_asked(make):
    world = make(rules=(Rule(kind=("slowest",), dwell_s=120.0, then="act"),))
    assert moves(world, world.slowest("w-2", 0.08)) == []
    assert moves(world, world.wait(121)) == [("w-2", "w-4")]


def test_the_reserve_and_the_budget_hold(make):
    world = make(keep_reserve=3)
    assert refusals(world, world.slowest("w-2", 0.08)) == ["reserve"]
    world = make(moves_per_hour=0)
    assert refusals(world, world.slowest("w-2", 0.08)) == ["budget"]


def test_an_explanation_says_what_it_waits_for(make):
    world = make()
    world.slowest("w-2", 0.08)
    settle(world)
    world.slowest("w-1", 0.07)
    reply = world.ask("policy", incident=f"i-{world.incidents}")
    (check,) = [one for one in reply["explanation"]["checks"] if one["what"] == "rebalance"]
    assert not check["holds"]
    assert check["words"] == "1 of at most 1 exchanged within 600 s"
    assert json.loads(json.dumps(reply))["explanation"]["decision"] == "act"


def test_an_operator_may_name_a_standby_that_was_slow(make):
    world = make(automation="approval")
    world.slowest("w-2", 0.08)
    first = world.facts()[-1].migration
    assert world.ask("approve", migration=first, reason="", requested_by="ada")["ok"]
    settle(world)
    over(world)
    world.wait(3 * EVERY_S)
    world.slowest("w-4", 0.08)
    second = world.facts()[-1].migration
    named = {"migration": second, "reason": "", "requested_by": "ada", "to": ["w-2"]}
    assert world.ask("approve", **named)["ok"]
    assert moves(world)[-1] == ("w-4", "w-2")


def test_a_shadow_that_does_not_rebalance_would_ignore_it(make):
    world = make()
    shadow = {"shadow": Policy(), "shadow_source": "shadow.yaml"}
    world.do(PolicyChanged(policy=world.policy, source="policy.yaml", **shadow))
    commands = world.slowest("w-2", 0.08)
    (compared,) = [one for one in world.facts(commands) if isinstance(one, PolicyCompared)]
    assert (compared.decision, compared.would) == ("act", "ignore")
