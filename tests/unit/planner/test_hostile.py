"""A machine says what it likes: the planner goes on, and the others with it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hostile import facts

from trainmover.events import executor, machine
from trainmover.events.machine import MachineLost
from trainmover.job.topology import Machine
from trainmover_planner.state.effects import Fact


def register(world, name, endpoints, *, low=4, high=6):
    offered = Machine(name=name, generation=0, endpoints=endpoints)
    return world.say(
        machine.MachineRegistered(machine=offered, nnodes_min=low, nnodes_max=high, pid=1, host="h")
    )


class TestShapes:
    """What does not fit the job is refused with its machine, and is no index of anything."""

    @pytest.mark.parametrize(
        "endpoints",
        [{0: ()}, {0: ("h:1", "h:2")}, {-1: ("h:1",)}, {4: ("h:1",)}],
    )
    def test_a_standby_that_is_warm_for_nonsense_is_refused(self, world, endpoints):
        said = world.say(machine.MachineWarming(machine="w-4", generation=0, endpoints=endpoints))
        assert [type(fact) for fact in world.facts(said)] == [MachineLost]
        assert world.verbs(said) == ["w-4:stop"]
        world.failed("w-1")
        assert world.last_plan().moves[0].joiner == "w-5", "the other one takes the slot"

    @pytest.mark.parametrize("slot", [-1, 4, 2**40])
    def test_a_standby_that_is_ready_for_no_slot_is_refused(self, world, slot):
        fact = machine.MachineReady(
            machine="w-4", generation=0, slot=slot, shadow_iterations=3, warm_s=1.0
        )
        assert world.verbs(world.say(fact)) == ["w-4:stop"]

    def test_a_member_that_says_so_keeps_its_slot(self, world):
        said = world.say(machine.MachineWarming(machine="w-1", generation=0, endpoints={9: ()}))
        assert said == []

    @pytest.mark.parametrize("endpoints", [(), ("h:1",) * 2000])
    def test_a_machine_without_ranks_never_decides_what_the_job_is(self, world_class, endpoints):
        world = world_class()
        assert world.verbs(register(world, "w-0", endpoints)) == ["w-0:stop"]
        for number in range(1, 7):
            world.register(f"w-{number}")
        assert world.membership.members[0].machine == "w-1"

    def test_a_follower_outside_of_the_job_is_none(self, world):
        for follower in (4, 2**31 - 1):
            world.say(executor.StateFollowed(machine="w-2", rank=1, follower=follower, epoch=1))
        world.failed("w-1")
        assert world.last_plan().sources == {1: 2}

    def test_an_exit_of_no_rank_of_the_job_is_none(self, world):
        for rank in (4, 2**31 - 1):
            exited = machine.WorkerExited(
                machine="w-4", generation=0, rank=rank, epoch=1, exit_code=1, signal=None
            )
            assert world.say(exited) == []


class TestSpeakers:
    """Reports count from the holder of the rank, and from whom the plan waits for."""

    def test_a_stranger_cannot_give_a_plan_up(self, world):
        world.ask("migrate", machine="w-1")
        plan = world.last_plan()
        for name, rank in [("w-5", 0), ("w-0", 2), ("w-4", 3), ("evil", 1)]:
            fact = executor.PlanFailed(
                migration=plan.id,
                machine=name,
                rank=rank,
                epoch=plan.epoch,
                reason="because",
                step_safe=True,
            )
            assert world.say(fact) == []
        assert world.state.migrations[plan.id].phase == "preparing"
        world.report(executor.PlanFailed, plan, ranks=[1])
        assert world.state.migrations[plan.id].phase == "aborted", "the joiner may"

    def test_a_stranger_cannot_complete_a_plan(self, world):
        world.ask("migrate", machine="w-1")
        plan = world.last_plan()
        world.report(executor.PlanPrepared, plan, ranks=[0, 1, 2])
        for name in ("w-5", "w-0"):
            fields = {"migration": plan.id, "machine": name, "epoch": plan.epoch}
            for rank in range(4):
                if (name, rank) != ("w-0", 0):
                    world.say(executor.PlanPrepared(**fields, rank=rank, prepare_s=0.1))
        assert world.state.migrations[plan.id].phase == "preparing"

    def test_nobody_says_what_another_rank_holds(self, world_class):
        world = world_class()
        for number in range(6):
            world.register(f"w-{number}")
        for number in (4, 5):
            world.warming(f"w-{number}")
            world.ready(f"w-{number}")
        for rank in range(4):  # pairs of replicas: 0 and 1, 2 and 3
            pair = (rank - rank % 2, rank - rank % 2 + 1)
            world.say(executor.JobLayoutKnown(machine=f"w-{rank}", rank=rank, replicas=pair))
        for liar in ("w-2", "w-4"):
            world.say(executor.JobLayoutKnown(machine=liar, rank=1, replicas=(1, 2)))
        world.failed("w-1")
        assert world.last_plan().sources == {1: 0}

    @pytest.mark.parametrize("machine_name", ["w-1", "w-5", "evil"])
    def test_an_absurd_epoch_is_never_the_next_one(self, world, machine_name):
        at = {"machine": machine_name, "rank": 1, "epoch": 2**32 - 1}
        world.say(executor.StepBroken(**at, committed_step=1, reason="r"))
        world.say(executor.StepProgress(**at, step=1, step_s=0.1))
        world.say(executor.PlanCommitted(**at, migration="m-0007", step=1))
        world.failed("w-2")
        assert world.last_plan().epoch == 2

    def test_an_epoch_that_the_bus_lost_is_not_used_again(self, world):
        world.say(executor.StepProgress(machine="w-1", rank=1, epoch=9, step=1, step_s=0.1))
        world.failed("w-2")
        assert world.last_plan().epoch == 10

    def test_a_break_of_another_rank_is_none(self, world):
        for rank in (0, 2, 3):
            world.say(
                executor.StepBroken(machine="w-1", rank=rank, epoch=1, committed_step=1, reason="r")
            )
        assert world.state.broken == {}
        assert world.wait(60) == []


def known(state) -> int:
    """How much the planner keeps of what was said."""
    tables = (
        *(state.early, state.saved, state.said, state.holdings, state.followers, state.finished),
        *(state.deaths, state.spent, state.traces, state.cold, state.spare, state.crashes.every),
        *(state.seen, state.migrations, state.memberships, state.broken, state.unannounced),
    )
    return sum(map(len, tables))


@settings(max_examples=60, deadline=None)
@given(
    said=st.lists(facts(), max_size=40),
    restart_at=st.sets(st.integers(0, 40), max_size=2),
)
def test_whatever_is_said_the_planner_goes_on(world_class, said, restart_at):
    world = world_class()
    world.form()
    for index, payload in enumerate(said):
        world.do(Fact(payload, "/machine/evil"))
        if index % 8 == 7:
            world.wait(0.5)
        if index in restart_at:
            world.restart()
    world.restart()
    world.wait(200)
    assert world.state.issued < 2**31 + 2**21
    assert known(world.state) < 400
    assert world.ask("status")["job"] == "demo"


@settings(max_examples=60, deadline=None)
@given(said=st.lists(facts(), max_size=40), restart=st.booleans())
def test_one_machine_that_says_whatever_it_likes_is_replaced_like_any_other(
    world_class, said, restart
):
    world = world_class()
    world.form()
    for payload in said:
        # The bus lets nobody speak for others; one that says that it finished has left the job.
        # That nobody else holds its state is its own to say, too: then the job cannot go on.
        if isinstance(payload, executor.JobLayoutKnown) and payload.rank == 1:
            continue
        if getattr(payload, "machine", "") == "w-1" and not isinstance(
            payload, executor.WorkerFinished | machine.MachineNoticed
        ):
            world.do(Fact(payload, "/machine/w-1"))
    if restart:
        world.restart()
    world.failed("w-1")
    plan = world.last_plan()
    assert [(move.slot, move.leaver) for move in plan.moves] == [(1, "w-1")]
    world.finish(plan)
    assert world.membership.slot_of_machine("w-1") is None
    assert world.state.phase == "running"
