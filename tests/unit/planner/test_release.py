"""A pool recalls standbys; the planner lets go whom no slot and no plan needs."""

from __future__ import annotations

import pytest
from tests.unit.planner.conftest import World

from trainmover.commands import Release, Warm
from trainmover.events import machine
from trainmover.events.executor import PlanPrepared
from trainmover_planner.state.effects import PublishFact, SendCommand


@pytest.fixture
def world() -> World:
    """Four slots, two standbys that a pool lent: w-4 and w-5."""
    made = World(cooldown_s=0, spare=0)
    made.form()
    made.lend("w-4")
    made.lend("w-5")
    return made


def released(world: World) -> list[machine.MachineReleased]:
    return [fact for fact in world.facts() if isinstance(fact, machine.MachineReleased)]


def orders(world: World, name: str) -> list[Release]:
    sent = (one for one in world.log if isinstance(one, SendCommand) and one.machine == name)
    return [one.command for one in sent if isinstance(one.command, Release)]


def kill(world: World, name: str) -> None:
    """A machine dies, and everybody who is left knows of it."""
    world.failed(name)
    world.broken([one.machine for one in world.membership.members if one.machine != name])


def standbys(world: World, *names: str) -> dict:
    return world.ask("standbys", machines=names)


def test_a_standby_is_let_go_and_never_chosen_again(world: World) -> None:
    answer = world.ask("release", machine="w-4", reason="other needs it", requested_by="pool p")
    assert answer["ok"]
    (fact,) = released(world)
    assert (fact.machine, fact.generation, fact.requested_by) == ("w-4", 0, "pool p")
    (order,) = orders(world, "w-4")
    assert (order.generation, order.epoch, order.then) == (0, 1, "stop")
    kill(world, "w-1")
    assert world.last_plan().membership.slot_of_machine("w-5") == 1
    assert standbys(world, "w-4")["machines"] == {"w-4": "gone"}


def test_the_fact_is_stored_before_the_machine_hears_of_it(world: World) -> None:
    before = len(world.log)
    world.ask("release", machine="w-4")
    said = world.log[before:]
    kinds = [type(one) for one in said if isinstance(one, PublishFact | SendCommand)]
    assert kinds == [PublishFact, SendCommand]
    assert not next(one for one in said if isinstance(one, SendCommand)).urgent


def test_whoever_has_a_slot_stays(world: World) -> None:
    kill(world, "w-1")
    taken = world.last_plan()
    world.finish(taken)
    joiner = taken.membership.members[1].machine
    answer = world.ask("release", machine=joiner)
    assert (answer["ok"], answer["code"]) == (False, "in_slot")
    assert orders(world, joiner) == []


def test_a_machine_of_the_jobs_own_is_nobodys_to_have_back(world: World) -> None:
    world.register("w-6")
    world.warming("w-6")
    for name in ("w-1", "w-6"):
        answer = world.ask("release", machine=name)
        assert (answer["ok"], answer["code"]) == (False, "not_lent")
        assert orders(world, name) == []


def test_whom_an_open_plan_counts_on_stays(world: World) -> None:
    world.ask("migrate", machine="w-1", to=["w-4"])
    answer = world.ask("release", machine="w-4")
    assert (answer["ok"], answer["code"]) == (False, "joining")
    assert standbys(world, "w-4", "w-5")["machines"] == {"w-4": "promised", "w-5": "ready"}
    plan = world.last_plan()
    world.report(PlanPrepared, plan)
    world.finish(plan)
    assert world.ask("release", machine="w-4")["code"] == "in_slot"
    assert orders(world, "w-4") == []


def test_a_recovery_counts_as_well(world: World) -> None:
    kill(world, "w-1")
    joiner = world.last_plan().membership.members[1].machine
    assert world.ask("release", machine=joiner)["code"] == "joining"


def test_nobody_knows_the_machine(world: World) -> None:
    assert world.ask("release", machine="w-9")["code"] == "unknown_machine"
    assert standbys(world, "w-9")["machines"] == {}


def test_a_dry_run_changes_nothing(world: World) -> None:
    assert world.ask("release", machine="w-4", dry_run=True)["ok"]
    assert (released(world), orders(world, "w-4")) == ([], [])


def test_asked_again_it_is_one_fact_and_the_machine_is_told_again(world: World) -> None:
    world.ask("release", machine="w-4")
    world.ask("release", machine="w-4")
    assert len(released(world)) == 1
    assert len(orders(world, "w-4")) == 2


@pytest.mark.parametrize("lose", [0, 1])
def test_a_planner_that_starts_over_still_does_not_use_it(world: World, lose: int) -> None:
    world.ask("release", machine="w-4")
    world.restart(lose=lose)
    kill(world, "w-1")
    assert world.last_plan().membership.slot_of_machine("w-5") == 1


def test_it_may_come_back_in_a_new_incarnation(world: World) -> None:
    world.ask("release", machine="w-4")
    commands = world.register("w-4", 1, pool="spares")
    assert any(isinstance(one, SendCommand) and isinstance(one.command, Warm) for one in commands)
    world.warming("w-4", 1)
    world.ready("w-4", 1)
    assert standbys(world, "w-4")["machines"] == {"w-4": "ready"}


def test_standbys_are_counted_without_those_that_are_promised(world: World) -> None:
    told = standbys(world)
    assert (told["phase"], told["missing"], told["standbys"], told["ready"]) == ("running", 0, 2, 2)
    world.ask("migrate", machine="w-1", to=["w-4"])
    assert standbys(world)["standbys"] == 1


def test_a_held_job_says_how_many_machines_it_waits_for() -> None:
    world = World(spare=0)
    world.form()
    kill(world, "w-1")
    told = standbys(world, "w-0", "w-1")
    assert (told["phase"], told["missing"], told["standbys"]) == ("held", 1, 0)
    assert told["machines"]["w-0"] == "slot"


def test_before_a_job_forms_it_needs_nobody() -> None:
    assert standbys(World())["phase"] == "forming"
