"""Several machines change hands in one plan, or die together."""

from __future__ import annotations

import pytest

from trainmover.errors import RequestRefusedError
from trainmover.events import executor, migration
from trainmover.job.topology import Layout
from trainmover.protocol.private_state import holder_of, holders_of
from trainmover.tracing.observe import new_event
from trainmover_console.view.summary import summarise
from trainmover_planner.machines.assignment import sources
from trainmover_planner.state.inventory import incarnation_of


@pytest.fixture
def wide(world_class):
    """Six slots, three ready standbys, formed."""
    world = world_class(slots=6, spare=3)
    world.form()
    return world


def test_two_machines_move_in_one_plan(wide):
    reply = wide.ask("migrate", machine="w-3", others=("w-1",))
    assert reply["ok"]
    (plan,) = wide.plans()
    assert [(m.slot, m.leaver, m.joiner) for m in plan.moves] == [
        (1, "w-1", "w-7"),
        (3, "w-3", "w-6"),
    ]
    assert (plan.epoch, plan.sources) == (2, {1: 1, 3: 3})
    assert wide.recipients("prepare") == [f"w-{n}" for n in range(8)], "the third standby rests"

    wide.report(executor.PlanPrepared, plan)
    commands = wide.report(executor.PlanSwitched, plan)
    commands += wide.report(executor.PlanCommitted, plan)
    assert wide.names(commands) == ["MigrationSwitching", "MigrationCommitted"]
    assert wide.recipients("release", commands) == ["w-1", "w-3"]
    assert [wide.membership.machine_of(rank) for rank in (1, 3)] == ["w-7", "w-6"]
    assert set(wide.state.cooldown) == {1, 3}
    for fact in wide.facts():
        if type(fact).__name__.startswith("Migration"):
            assert [(m.slot, m.leaver) for m in fact.moves] == [(1, "w-1"), (3, "w-3")]
            assert (fact.slot, fact.leaver) == (1, "w-1")
    proposed = next(p for p in wide.facts() if isinstance(p, migration.MigrationProposed))
    assert [m.joiner for m in proposed.moves] == ["", ""]
    assert wide.ask("status")["migrations"][0]["moves"] == [m.model_dump() for m in plan.moves]


def test_standbys_can_be_named_in_the_order_of_the_machines(wide):
    wide.ask("migrate", machine="w-3", others=("w-1",), to=("w-8",))
    assert {m.leaver: m.joiner for m in wide.last_plan().moves} == {"w-3": "w-8", "w-1": "w-6"}


@pytest.mark.parametrize(
    ("fields", "code", "hint"),
    [
        (
            {"machine": "w-0", "others": ["w-1", "w-2"]},
            "too_many",
            "at most a third may, that is 2",
        ),
        ({"machine": "w-1", "others": ["w-1"]}, "named_twice", "w-1 is named twice"),
        ({"machine": "w-1", "others": ["w-9"]}, "unknown_machine", "w-9"),
        ({"machine": "w-1", "others": ["w-6"]}, "not_in_slot", "w-6"),
        ({"machine": "w-1", "to": ["w-6", "w-7"]}, "too_many_standbys", "2 standbys"),
        ({"machine": "w-1", "others": ["w-2"], "to": ["w-6", "w-6"]}, "named_twice", "Standby w-6"),
        ({"machine": "w-1", "others": ["w-2"], "to": ["w-6", "w-0"]}, "not_a_standby", "w-0"),
    ],
)
def test_refusals_change_nothing(wide, fields, code, hint):
    before, said = wide.state, len(wide.facts())
    reply = wide.ask("migrate", **fields)
    assert (reply["ok"], reply["code"]) == (False, code)
    assert hint in reply["reason"]
    assert reply["next_step"]
    assert wide.state == before
    assert len(wide.facts()) == said


def test_too_few_standbys_are_counted(world_class):
    world = world_class(slots=6, spare=1)
    world.form()
    before = world.state
    reply = world.ask("migrate", machine="w-1", others=["w-4"])
    assert reply["code"] == "no_standby"
    assert "1 missing" in reply["reason"]
    assert world.state == before


def test_a_slot_that_migrates_already_is_refused(wide):
    wide.ask("migrate", machine="w-1", others=["w-4"])
    before = wide.state
    reply = wide.ask("migrate", machine="w-4", others=["w-5"])
    assert reply["code"] == "already_migrating"
    assert "slot 4" in reply["reason"]
    assert wide.ask("migrate", machine="w-0")["code"] == "migration_in_flight"
    assert wide.state == before


def test_standbys_are_matched_so_that_every_slot_is_ready(world_class):
    world = world_class(slots=6, spare=2)
    world.form()
    world.warming("w-7", slots=[4, 5])  # it is ready for slot 1 no more
    world.ask("migrate", machine="w-4", others=["w-1"])
    assert {m.slot: m.joiner for m in world.last_plan().moves} == {1: "w-6", 4: "w-7"}


@pytest.mark.parametrize("dying", [("w-1", "w-2"), ("w-0", "w-5"), ("w-1", "w-4")])
def test_machines_that_die_together_are_replaced_together(wide, dying):
    for name in dying:
        wide.failed(name)
    plan = wide.last_plan()
    assert {m.leaver: m.joiner for m in plan.moves} == dict(zip(dying, ("w-6", "w-7"), strict=True))
    assert not set(plan.sources.values()) & plan.joining_ranks
    assert set(wide.recipients("release")) == set(dying), "both are fenced, no joiner is"
    wide.finish(plan)


def test_a_joiner_that_lost_its_links_to_a_second_death_is_asked_again(wide):
    """It could not join because of the other death, which is not its own fault."""
    wide.failed("w-1")
    first = wide.last_plan()
    failed = executor.PlanFailed(
        migration=first.id,
        machine="w-6",
        rank=1,
        epoch=first.epoch,
        reason="rank 2 ended its link",
        step_safe=True,
        links_broke=True,
    )
    assert wide.facts(wide.say(failed)) == []
    commands = wide.failed("w-2")
    assert {m.slot: m.joiner for m in wide.last_plan().moves} == {1: "w-6", 2: "w-7"}
    assert "w-6" not in wide.recipients("release", commands)
    wide.finish(wide.last_plan())


def test_a_joiner_that_lost_its_links_for_no_reason_is_not_asked_again(wide):
    wide.failed("w-1")
    first = wide.last_plan()
    wide.say(
        executor.PlanFailed(
            migration=first.id,
            machine="w-6",
            rank=1,
            epoch=first.epoch,
            reason="rank 2 ended its link",
            step_safe=True,
            links_broke=True,
        )
    )
    commands = wide.wait(2.0)
    assert wide.last_plan().moves[0].joiner == "w-7"
    assert "w-6" in wide.recipients("release", commands)


def test_one_of_two_joiners_dies_after_the_switch(wide):
    wide.ask("migrate", machine="w-1", others=["w-2"])
    move = wide.last_plan()
    wide.report(executor.PlanSwitched, move)
    wide.failed("w-6", epoch=move.epoch)
    plan = wide.last_plan()
    assert (plan.from_epoch, [m.joiner for m in plan.moves]) == (2, ["w-8"])
    wide.finish(plan)
    assert {"w-1", "w-2"} <= set(wide.recipients("release"))


def test_two_moves_survive_a_new_planner(wide):
    wide.ask("migrate", machine="w-1", others=["w-4"])
    before = wide.state.migrations
    wide.restart()
    assert wide.state.migrations["m-0001"].moves == before["m-0001"].moves
    wide.finish(wide.last_plan())
    assert incarnation_of(wide.membership.members[4]) == ("w-7", 0)


def test_a_fact_lists_every_move(wide):
    wide.ask("migrate", machine="w-1", others=["w-4"])
    wide.finish(wide.last_plan())
    lines = {
        type(fact).__name__: summarise(new_event(job="demo", source="/planner", payload=fact))
        for fact in wide.facts()
    }
    assert "w-1 is to leave slot 1, w-4 is to leave slot 4: " in lines["MigrationProposed"]
    assert "w-1 -> w-6, w-4 -> w-7, epoch 2" in lines["MigrationPreparing"]
    assert "w-1 -> w-6 in slot 1, w-4 -> w-7 in slot 4, epoch 2" in lines["MigrationCommitted"]


class TestPrivateState:
    @pytest.mark.parametrize(
        ("slots", "holders"),
        [(1, 0), (2, 1), (3, 2), (4, 2), (6, 2), (7, 3), (12, 4), (1000, 4)],
    )
    def test_as_many_hold_one_as_may_die_with_its_rank(self, slots, holders):
        layout = Layout(slots=slots, ranks_per_slot=2)
        found = holders_of(layout.world_size - 1, layout)
        assert len(found) == holders
        assert list(found) == [2 * slot + 1 for slot in range(holders)]

    def test_a_holder_that_joins_has_nothing_to_hand_out(self):
        layout = Layout(slots=6)
        assert holder_of(4, layout, joining=[4]) == 5
        assert holder_of(4, layout, joining=[4, 5]) == 0
        assert holder_of(4, layout, joining=[4, 5, 0]) is None

    def test_private_state_that_nobody_keeps_is_said_to_be_lost(self):
        layout, world = Layout(slots=6), (range(6),)
        with pytest.raises(RequestRefusedError, match=r"rank 1 are lost: slots \[1, 2, 3\]") as no:
            sources(layout, dict.fromkeys(range(6), world), joining=[1, 2, 3])
        assert no.value.code == "no_private_state"
