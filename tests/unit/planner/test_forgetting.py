"""A job may go on for ever: what the planner keeps of machines that are gone is bounded."""

from __future__ import annotations

import pytest

from trainmover_planner.machines import forgetting

KEPT = 4


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "_GONE", KEPT)


def crash(world, number: int) -> str:
    """A machine dies and is replaced; another one comes. The name of the dead one."""
    name = world.membership.members[number % world.slots].machine
    world.failed(name)
    world.broken([one.machine for one in world.membership.members if one.machine != name])
    world.wait(2.0)
    world.finish(world.last_plan())
    fresh = f"w-{100 + number}"
    world.register(fresh)
    world.warming(fresh)
    world.ready(fresh)
    return name


def known(world) -> dict[str, int]:
    state = world.state
    return {
        "hosts": len(state.inventory.hosts) - world.slots - world.spare,
        "deaths": len(state.deaths),
        "spent": len(state.spent) - world.slots,
        "spare": len(state.spare) - world.spare,
        "said": len(state.said),
    }


def test_machines_that_died_long_ago_are_forgotten(world):
    dead = [crash(world, number) for number in range(40)]
    assert max(known(world).values()) <= 2 * KEPT + 1
    assert dead[-1] in world.state.inventory.hosts
    assert dead[0] not in world.state.inventory.hosts
    assert not world.membership.slot_of_machine(dead[-1])


def test_a_planner_that_starts_over_forgets_as_well_and_goes_on(world):
    for number in range(40):
        crash(world, number)
    world.restart()
    assert max(known(world).values()) <= 2 * KEPT + 1
    epoch = world.membership.epoch
    crash(world, 41)
    assert world.membership.epoch > epoch


def test_standbys_that_come_and_go_are_forgotten_without_a_migration(world):
    for number in range(40):
        name = f"w-{100 + number}"
        world.register(name)
        world.failed(name)
        world.wait(1.0)
    assert max(known(world).values()) <= 2 * KEPT + 1


def test_machines_of_another_shape_are_forgotten(world):
    for number in range(40):
        world.register(f"w-{100 + number}", nnodes=(9, 9))
    assert len(world.state.inventory.refused) <= 2 * KEPT + 1
    assert known(world)["hosts"] <= 2 * KEPT + 1


def test_a_machine_that_was_forgotten_may_come_back_under_its_name(world):
    dead = [crash(world, number) for number in range(40)]
    world.register(dead[0], generation=1)
    world.warming(dead[0], generation=1)
    world.ready(dead[0], generation=1)
    assert world.ask("migrate", machine=world.membership.members[0].machine, to=dead[0])["ok"]


def test_what_is_quarantined_stays_so_however_long_ago(world):
    world.ask("quarantine", machine="w-5", reason="odd")
    world.failed("w-5")
    for number in range(40):
        crash(world, number)
    assert "w-5" in world.state.inventory.quarantined
    assert "w-5" in world.state.inventory.hosts
