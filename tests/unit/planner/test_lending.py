"""A machine of a pool takes part in the job that its pool assigned it to last, and in no other."""

from __future__ import annotations

import pytest
from tests.unit.planner.conftest import World

from trainmover.events.machine import MachineLent
from trainmover.job.topology import Machine
from trainmover_planner.state.lending import Lending


@pytest.fixture
def world() -> World:
    made = World(spare=0)
    made.form()
    return made


def known(world: World, name: str = "s-0") -> bool:
    return world.state.inventory.get(name) is not None


def test_an_offer_counts_once_its_machine_is_assigned(world: World) -> None:
    world.register("s-0", pool="spares")
    assert not known(world)
    assert world.ask("standbys", machines=("s-0",))["machines"] == {}
    world.assigned("s-0")
    assert world.ask("standbys", machines=("s-0",))["machines"] == {"s-0": "warming"}


def test_the_words_may_come_in_either_order(world: World) -> None:
    world.assigned("s-0")
    assert not known(world)
    world.register("s-0", pool="spares")
    assert known(world)


def test_who_was_assigned_elsewhere_is_not_taken(world: World) -> None:
    world.assigned("s-0")
    world.assigned("s-0", "other")
    world.register("s-0", pool="spares")
    assert not known(world)
    world.assigned("s-1", "other")
    world.register("s-1", pool="spares")
    assert not known(world, "s-1")


def test_who_is_assigned_elsewhere_is_a_standby_no_more(world: World) -> None:
    """Its process started over, and this planner was not told of it yet."""
    world.lend("s-0")
    assert world.ask("standbys", machines=("s-0",))["standbys"] == 1
    world.assigned("s-0", "other")
    told = world.ask("standbys", machines=("s-0",))
    assert (told["standbys"], told["machines"]) == (0, {"s-0": "gone"})
    world.restart()
    assert world.ask("standbys")["standbys"] == 0
    world.assigned("s-0")
    world.register("s-0", 1, pool="spares")
    assert world.ask("standbys")["standbys"] == 1


def test_who_has_a_slot_keeps_it_whatever_the_pool_says(world: World) -> None:
    world.lend("s-0")
    world.failed("w-1")
    world.broken(["w-0", "w-2", "w-3"])
    plan = world.last_plan()
    world.finish(plan)
    world.assigned("s-0", "other")
    assert world.membership.slot_of_machine("s-0") == 1
    assert world.ask("standbys", machines=("s-0",))["machines"] == {"s-0": "slot"}


def test_it_comes_again_without_being_assigned_again(world: World) -> None:
    """A machine whose processes ended, or that handed its slot over, registers anew by itself."""
    world.lend("s-0")
    world.register("s-0", 1, pool="spares")
    host = world.state.inventory.get("s-0")
    assert host is not None
    assert (host.incarnation, host.lent) == (("s-0", 1), True)


def test_a_leader_that_leads_no_more_is_not_believed(world: World) -> None:
    world.assigned("s-0", term=7)
    world.assigned("s-0", "other", term=3)
    world.register("s-0", pool="spares")
    assert known(world)


def test_a_planner_that_starts_over_knows_as_much(world: World) -> None:
    world.lend("s-0")
    world.register("s-1", pool="spares")
    world.assigned("s-2", "other")
    world.restart()
    world.register("s-2", pool="spares")
    assert [known(world, f"s-{n}") for n in range(3)] == [True, False, False]
    world.assigned("s-1")
    assert known(world, "s-1")


def test_whoever_is_never_assigned_fills_no_memory() -> None:
    lending = Lending()
    for number in range(3000):
        machine = Machine(name=f"s-{number}", generation=0, endpoints=("h:1",))
        fact = MachineLent(
            machine=machine, nnodes_min=1, nnodes_max=2, pid=1, host="h", pool="spares"
        )
        lending = lending.wait(fact)
    assert len(lending.offers) == 1024
    assert lending.take("s-0")[1] is not None
    assert lending.take("s-2999")[1] is None
