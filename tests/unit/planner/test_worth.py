"""A straggler is moved if that pays: what it is expected to cost, and to save."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from pydantic import ValidationError

from trainmover.events.executor import StepResumed, WorkerCosts
from trainmover.events.incident import IncidentClosed, IncidentOpened, IncidentUpdated
from trainmover.events.migration import MigrationApproved, MigrationProposed, MigrationRejected
from trainmover.events.operator import PolicyChanged
from trainmover.job.plan import Forecast
from trainmover.policy import Policy
from trainmover_planner.rules import worth

GB = 10**9


@pytest.fixture
def make(world_class):
    def make(**policy):
        world = world_class(spare=3, cooldown_s=0, **policy)
        world.form()
        return world

    return make


def late(world, name: str, lateness: Any) -> list:
    """A detector finds a straggler."""
    world.incidents += 1
    found = IncidentOpened(
        id=f"i-{world.incidents}",
        kind="straggler",
        machine=name,
        slot=world.membership.slot_of_machine(name),
        epoch=world.membership.epoch,
        confidence=0.9,
        summary=f"{name} is slow",
        evidence={} if lateness is None else {"lateness": lateness},
        detector="straggler",
        advice="move",
    )
    return world.say(found, "/detector")


def updated(world, lateness: float) -> list:
    fact = IncidentUpdated(
        id=f"i-{world.incidents}",
        confidence=0.9,
        summary="later still",
        evidence={"lateness": lateness},
    )
    return world.say(fact, "/detector")


def resumed(world, migration: str, *pauses_s: float) -> None:
    """So many ranks say how long they paused."""
    membership = world.membership
    for rank, pause_s in enumerate(pauses_s):
        world.say(
            StepResumed(
                machine=membership.machine_of(rank),
                rank=rank,
                epoch=membership.epoch,
                step=11,
                pause_s=pause_s,
                step_s=1.0,
                steps_redone=0,
                migration=migration,
            )
        )


def moved_by_hand(world, *pauses_s: float) -> None:
    """An operator moves a machine, and all ranks say how long they paused."""
    accepted = world.ask("migrate", machine=world.membership.members[0].machine)
    assert accepted["ok"], accepted
    plan = world.last_plan()
    world.finish(plan)
    resumed(world, plan.id, *pauses_s)


def forecast_of(world, machine: str = "w-1") -> Forecast:
    """What a move that an operator asks for is expected to cost."""
    reply = world.ask("migrate", machine=machine, dry_run=True)
    return Forecast.model_validate(reply["plan"]["forecast"])


def approved(world, commands) -> list[str]:
    return [fact.leaver for fact in world.facts(commands) if isinstance(fact, MigrationApproved)]


def rejected(world, commands) -> list[MigrationRejected]:
    return [fact for fact in world.facts(commands) if isinstance(fact, MigrationRejected)]


# -- what it decides ------------------------------------------------------------------------------


def test_a_straggler_that_costs_more_than_its_move_is_moved_and_the_numbers_are_said(make):
    world = make()
    commands = late(world, "w-2", 0.2)
    (proposed,) = [one for one in world.facts(commands) if isinstance(one, MigrationProposed)]
    assert proposed.forecast == Forecast(
        pause_s=1.0,
        pause_most_s=10.0,
        measured=0,
        lateness=0.2,
        horizon_s=3_600.0,
        gain_s=720.0,
    )
    assert world.last_plan().forecast == proposed.forecast
    assert approved(world, commands) == ["w-2"]


def test_one_that_costs_less_stays_and_that_is_said_once(make):
    world = make(horizon_s=100)
    commands = late(world, "w-2", 0.05)
    (refused,) = rejected(world, commands)
    assert refused.code == "does_not_pay"
    assert "within 10 s in nine of ten" in refused.reason
    assert "5 s saved within 100 s, as the others wait for 5 % of each step" in refused.reason
    (proposed,) = [one for one in world.facts(commands) if isinstance(one, MigrationProposed)]
    assert proposed.forecast is not None
    assert not proposed.forecast.pays
    assert world.wait(3_600) == []


def test_it_is_moved_when_it_gets_worse(make):
    world = make(horizon_s=100)
    assert approved(world, late(world, "w-2", 0.05)) == []
    assert approved(world, updated(world, 0.08)) == []
    assert approved(world, updated(world, 0.3)) == ["w-2"]
    assert world.last_plan().forecast.lateness == 0.3


def test_it_is_moved_when_a_longer_horizon_is_declared(make):
    world = make(horizon_s=100)
    assert approved(world, late(world, "w-2", 0.05)) == []
    policy = Policy.model_validate({**world.policy.model_dump(), "horizon_s": 1_000.0})
    commands = world.do(PolicyChanged(policy=policy, source="policy.yaml"))
    assert approved(world, commands) == ["w-2"]


def test_it_is_moved_when_moves_turn_out_to_be_cheap(make):
    world = make(horizon_s=100)
    assert approved(world, late(world, "w-2", 0.05)) == []
    before = len(world.log)
    moved_by_hand(world, 0.1, 0.2, 0.1, 0.1)
    assert approved(world, world.log[before:]) == ["w-0", "w-2"]


def test_an_operator_is_not_asked_about_a_move_that_does_not_pay(make):
    world = make(horizon_s=100, automation="approval")
    (refused,) = rejected(world, late(world, "w-2", 0.05))
    assert refused.code == "does_not_pay"
    (proposed,) = world.facts(updated(world, 0.3))
    assert isinstance(proposed, MigrationProposed)
    assert proposed.forecast.pays


@pytest.mark.parametrize("lateness", [None, "much", True, math.inf, math.nan, [0.2]])
def test_a_finding_that_does_not_say_how_late_is_not_weighed(make, lateness):
    world = make(horizon_s=0)
    commands = late(world, "w-2", lateness)
    assert approved(world, commands) == ["w-2"]
    assert world.last_plan().forecast.gain_s is None


@pytest.mark.parametrize(("said", "share"), [(7.0, 1.0), (-3, 0.0), (1, 1.0)])
def test_a_share_is_one(make, said, share):
    world = make(automation="approval")
    late(world, "w-2", said)
    plan = world.ask("policy", incident="i-1")["explanation"]
    (check,) = [one for one in plan["checks"] if one["what"] == "gain"]
    assert f"wait for {share * 100:.3g} % of each step" in check["words"]


def test_what_an_operator_asks_for_is_not_weighed(make):
    world = make(horizon_s=0)
    assert world.ask("migrate", machine="w-2")["ok"]
    assert world.last_plan().forecast.gain_s is None


def test_explain_has_the_numbers(make):
    world = make(horizon_s=100)
    late(world, "w-2", 0.05)
    (check,) = [
        one
        for one in world.ask("policy", incident="i-1")["explanation"]["checks"]
        if one["what"] == "gain"
    ]
    assert not check["holds"]
    assert "assumed: no earlier move" in check["words"]
    assert "5 s saved within 100 s" in check["words"]


# -- what it foresees -----------------------------------------------------------------------------


def test_the_first_move_is_judged_by_the_size_of_what_is_handed_over(make):
    world = make()
    for rank, size in enumerate((5 * GB, 40 * GB, 1, 1)):
        world.say(
            WorkerCosts(machine=f"w-{rank}", rank=rank, vote="front", state_bytes=size),
            f"/machine/w-{rank}",
        )
    found = forecast_of(world)
    assert (found.measured, found.state_bytes) == (0, 40 * GB)
    assert found.pause_most_s == pytest.approx(50.0)
    assert "40 GB of state" in found.cost_words
    assert forecast_of(world, "w-0").pause_most_s == pytest.approx(15.0)


def test_who_does_not_have_a_rank_says_nothing_of_its_size(make):
    world = make()
    liar = WorkerCosts(machine="w-3", rank=1, vote="front", state_bytes=10**15)
    world.say(liar, "/machine/w-3")
    world.say(WorkerCosts(machine="w-5", rank=1, state_bytes=10**15), "/machine/w-5")
    assert forecast_of(world).state_bytes == 0


def test_the_longest_pause_of_any_rank_is_that_of_the_move(make):
    world = make()
    moved_by_hand(world, 0.1, 0.4, 0.2, 0.0)
    found = forecast_of(world)
    assert (found.pause_s, found.measured) == (0.4, 1)
    assert found.pause_most_s == pytest.approx(0.8), "one pause says little of nine of ten"


def test_pauses_of_crashes_are_none_of_planned_moves(make):
    world = make()
    world.failed("w-3")
    world.broken(names=("w-0", "w-1", "w-2"))
    plan = world.last_plan()
    world.finish(plan)
    resumed(world, plan.id, 9.0, 9.0, 9.0)
    assert forecast_of(world).measured == 0


@pytest.mark.parametrize("pause_s", [math.inf, math.nan, -1.0])
def test_a_pause_that_is_none_is_not_counted(make, pause_s):
    world = make()
    moved_by_hand(world, pause_s)
    assert forecast_of(world).measured == 0


def test_of_many_pauses_nine_of_ten_are_within(make):
    world = make()
    plan = None
    for number in range(19):
        name = world.membership.machine_of(3)
        spare = next(h for h in ("w-3", "w-4") if h != name)
        generation = world.state.inventory.get(spare).machine.generation
        if number:
            generation += 1
            world.register(spare, generation)
        world.warming(spare, generation)
        world.ready(spare, generation)
        accepted = world.ask("migrate", machine=name, to=(spare,))
        assert accepted["ok"], accepted
        plan = world.last_plan()
        world.finish(plan)
        resumed(world, plan.id, float(number + 1))
    found = forecast_of(world)
    assert found.measured == 19
    assert (found.pause_s, found.pause_most_s) == (10.0, 18.0)


@pytest.mark.parametrize("count", [9, 10, 16, 32])
@pytest.mark.parametrize("sigma", [0.25, 1.0])
def test_nine_of_ten_further_pauses_are_within_whatever_they_are_like(count, sigma):
    draw = random.Random(count)
    within = 0
    for _ in range(2_000):
        seen = [draw.lognormvariate(0, sigma) for _ in range(count)]
        within += draw.lognormvariate(0, sigma) <= worth._pause_s(seen, 0)[1]
    assert 0.88 <= within / 2_000 <= 0.96


def test_a_planner_that_starts_over_knows_the_same(make):
    world = make(horizon_s=100)
    moved_by_hand(world, 0.1, 0.4)
    late(world, "w-2", 0.001)
    before = forecast_of(world)
    world.restart()
    assert forecast_of(world) == before
    assert not rejected(world, world.wait(60)), "it was said"


def test_an_incident_that_closes_is_forgotten(make):
    world = make(horizon_s=100)
    late(world, "w-2", 0.05)
    updated(world, 0.06)
    assert len(world.state.lately.late) == 1
    world.say(IncidentClosed(id="i-1", reason="quick again"), "/detector")
    assert len(world.state.lately.late) == 0
    updated(world, 0.9)
    assert len(world.state.lately.late) == 0


# -- what nobody would say -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10**30, 10**400])
def test_an_absurd_size_takes_nobodys_moves_away(make, size):
    world = make()
    document = {"machine": "w-1", "rank": 1, "vote": "front", "kept_bytes": 0, "keep_s": 0.0}
    with pytest.raises(ValidationError):
        WorkerCosts.model_validate_json(json.dumps({**document, "state_bytes": size}))
    assert forecast_of(world).pause_most_s == 10.0


def test_an_absurd_pause_makes_no_fact_that_nobody_can_read(make):
    world = make()
    moved_by_hand(world, 0.1, 1.7e308)
    assert forecast_of(world).pause_s == 0.1
    commands = late(world, "w-2", 0.2)
    for fact in world.facts(commands):
        assert type(fact).model_validate_json(fact.model_dump_json()) == fact
