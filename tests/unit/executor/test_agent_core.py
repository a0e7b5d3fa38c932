"""The agent's state machine, without any process or bus."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import trainmover_executor
from trainmover.commands import (
    AbortMigration,
    BreakStep,
    Command,
    Lead,
    Prepare,
    Recover,
    Release,
    Start,
    Stop,
    Warm,
)
from trainmover.events.executor import (
    PlanCommitted,
    PlanFailed,
    PlanSwitched,
    StepProgress,
    WorkerFinished,
)
from trainmover.events.machine import (
    MachineLent,
    MachineReady,
    MachineRegistered,
    MachineWarming,
    MachineWarmingFailed,
    WorkerExited,
)
from trainmover.job.plan import MigrationKind, Move, Plan
from trainmover.job.topology import Frozen, Layout, Member, Membership
from trainmover_executor.agent.core import core, effects
from trainmover_executor.agent.core.state import AgentState, Identity
from trainmover_executor.messages.worker import Broke, Done, Warmed

ME = "node-1"


class World:
    """Plays the shell: answers ``Bind``, remembers the rest."""

    def __init__(self, *, ranks: int = 1, warm_limit: int | None = None, pool: str = "") -> None:
        self.state = AgentState(
            me=Identity(
                job="demo",
                machine=ME,
                nnodes_min=2,
                nnodes_max=4,
                ranks=ranks,
                warm_limit=warm_limit,
                pid=1,
                host="h",
                pool=pool,
            )
        )
        self.ports = iter(range(5000, 6000))
        self.published: list[Frozen] = []
        self.urgent: list[Frozen] = []

    def feed(self, event: effects.Event) -> list[effects.Action]:
        self.state, actions = core.step(self.state, event)
        seen: list[effects.Action] = []
        for action in actions:
            seen.append(action)
            if isinstance(action, effects.Publish):
                self.published.append(action.fact)
                if action.urgent:
                    self.urgent.append(action.fact)
            if isinstance(action, effects.Bind):
                bound = {slot: self._endpoints() for slot in action.slots}
                seen += self.feed(effects.Bound(action.generation, bound))
        return seen

    def _endpoints(self) -> tuple[str, ...]:
        return tuple(f"10.0.0.1:{next(self.ports)}" for _ in range(self.state.me.ranks))

    def command(self, command: Command) -> list[effects.Action]:
        return self.feed(effects.Commanded(command))

    def last(self, kind: type[Frozen]) -> Frozen:
        return next(fact for fact in reversed(self.published) if isinstance(fact, kind))

    def keys(self, slot: int | None = None) -> list[str]:
        return [w.key for w in self.state.workers.values() if slot is None or w.slot == slot]

    def end_all(self) -> list[effects.Action]:
        return [
            action for key in self.keys() for action in self.feed(effects.Exited(key, None, 15))
        ]

    def warm(self, slot: int) -> list[effects.Action]:
        actions: list[effects.Action] = []
        for key in self.keys(slot):
            rank = self.state.workers[key].rank
            actions += self.feed(
                effects.Said(key, Warmed(rank=rank, shadow_iterations=3, warm_s=1.0))
            )
        return actions


def of(kind: type, actions: Iterable[effects.Action]) -> list:
    return [action for action in actions if isinstance(action, kind)]


def member(
    name: str, *, endpoints: tuple[str, ...] = ("10.9.9.9:1",), generation: int = 0
) -> Member:
    return Member(machine=name, generation=generation, endpoints=endpoints)


def membership(*members: Member, epoch: int = 1, ranks: int = 1) -> Membership:
    layout = Layout(slots=len(members), ranks_per_slot=ranks)
    return Membership(epoch=epoch, layout=layout, members=members)


def own(world: World) -> Member:
    return member(ME, endpoints=world.state.endpoints, generation=world.state.generation)


def active(*, ranks: int = 1) -> World:
    """A machine that fills slot 1 at epoch 1."""
    world = World(ranks=ranks)
    world.feed(effects.Begin())
    other = member("node-0", endpoints=tuple(f"10.9.9.9:{n}" for n in range(ranks)))
    job = membership(other, own(world), ranks=ranks)
    world.command(Start(generation=0, slot=1, membership=job))
    return world


def standby(*, warm: Iterable[int] = (0, 1), warm_limit: int | None = None) -> World:
    """A standby with bays for slots 0 and 1, those of ``warm`` ready."""
    world = World(warm_limit=warm_limit)
    world.feed(effects.Begin())
    job = membership(member("node-0"), member("node-2"))
    world.command(Warm(generation=0, slots=(0, 1), membership=job))
    for slot in warm:
        world.warm(slot)
    return world


def plan_for(
    world: World,
    *members: Member,
    id: str = "m1",
    kind: MigrationKind = "planned",
    epoch: int = 2,
    moves: tuple[Move, ...] = (),
    from_epoch: int = 1,
) -> Plan:
    ranks = world.state.me.ranks
    sources = {r: r for m in moves for r in range(m.slot * ranks, (m.slot + 1) * ranks)}
    return Plan(
        id=id,
        job="demo",
        kind=kind,
        from_epoch=from_epoch,
        membership=membership(*members, epoch=epoch, ranks=ranks),
        moves=moves,
        sources=sources,
    )


def joining_plan(world: World, slot: int = 1, **options: object) -> Plan:
    """A plan that puts us into ``slot``."""
    bay = world.state.bays[slot]
    ours = member(ME, endpoints=bay.endpoints, generation=world.state.generation)
    members = [member("node-0"), member("node-2")]
    leaver = members[slot].machine
    members[slot] = ours
    move = Move(slot=slot, leaver=leaver, joiner=ME)
    return plan_for(world, *members, moves=(move,), **options)  # type: ignore[arg-type]


def leaving_plan(world: World, **options: object) -> Plan:
    move = Move(slot=1, leaver=ME, joiner="node-3")
    return plan_for(world, member("node-0"), member("node-3"), moves=(move,), **options)  # type: ignore[arg-type]


def staying_plan(world: World, **options: object) -> Plan:
    move = Move(slot=0, leaver="node-0", joiner="node-3")
    return plan_for(world, member("node-3"), own(world), moves=(move,), **options)  # type: ignore[arg-type]


# -- registering and starting -----------------------------------------------------------------


def test_it_registers_what_it_bound() -> None:
    world = World(ranks=2)
    world.feed(effects.Begin())
    fact = world.last(MachineRegistered)
    assert isinstance(fact, MachineRegistered)
    assert fact.machine.generation == 0
    assert fact.machine.endpoints == ("10.0.0.1:5000", "10.0.0.1:5001")
    assert (fact.nnodes_min, fact.nnodes_max) == (2, 4)
    assert not isinstance(fact, MachineLent)


def test_a_machine_of_a_pool_is_lent() -> None:
    world = World(ranks=2, pool="spares")
    world.feed(effects.Begin())
    fact = world.last(MachineLent)
    assert isinstance(fact, MachineLent)
    assert fact.pool == "spares"
    assert fact.machine.endpoints == ("10.0.0.1:5000", "10.0.0.1:5001")


def test_start_spawns_every_rank_on_the_registered_sockets() -> None:
    world = World(ranks=2)
    world.feed(effects.Begin())
    job = membership(member("node-0", endpoints=("a:1", "a:2")), own(world), ranks=2)
    spawned = of(effects.Spawn, world.command(Start(generation=0, slot=1, membership=job)))
    assert [(s.rank, s.local_rank, s.role, s.socket_of) for s in spawned] == [
        (2, 0, "active", None),
        (3, 1, "active", None),
    ]
    assert world.state.phase == "active"
    assert world.state.epoch == 1


def test_start_again_changes_nothing() -> None:
    world = active()
    job = world.state.membership
    assert job is not None
    assert not of(effects.Spawn, world.command(Start(generation=0, slot=1, membership=job)))


@pytest.mark.parametrize(
    ("generation", "endpoints"), [(7, None), (0, ("10.1.1.1:9",))], ids=["generation", "sockets"]
)
def test_a_start_that_means_somebody_else_is_ignored(
    generation: int, endpoints: tuple[str, ...] | None
) -> None:
    world = World()
    world.feed(effects.Begin())
    ours = member(ME, endpoints=endpoints or world.state.endpoints)
    command = Start(generation=generation, slot=1, membership=membership(member("node-0"), ours))
    assert not of(effects.Spawn, world.command(command))
    assert world.state.phase == "registered"


# -- warming ----------------------------------------------------------------------------------


def test_a_standby_announces_all_bays_at_once_and_starts_one() -> None:
    world = World()
    world.feed(effects.Begin())
    job = membership(member("node-0"), member("node-2"))
    actions = world.command(Warm(generation=0, slots=(0, 1), membership=job))
    warming = world.last(MachineWarming)
    assert isinstance(warming, MachineWarming)
    assert set(warming.endpoints) == {0, 1}
    assert [(s.slot, s.role, s.socket_of) for s in of(effects.Spawn, actions)] == [
        (0, "standby", 0)
    ]


def test_bays_are_warmed_one_after_the_other() -> None:
    world = standby(warm=())
    spawned = of(effects.Spawn, world.warm(0))
    ready = world.last(MachineReady)
    assert isinstance(ready, MachineReady)
    assert (ready.slot, ready.shadow_iterations, ready.warm_s) == (0, 3, 1.0)
    assert [s.slot for s in spawned] == [1]


def test_warm_again_changes_nothing() -> None:
    world = standby()
    job = world.state.warm_membership
    assert job is not None
    assert not world.command(Warm(generation=0, slots=(0, 1), membership=job))


def test_a_bay_that_dies_is_retried_on_fresh_sockets_at_growing_intervals() -> None:
    world = standby(warm=())
    delays = []
    for attempt in range(1, 12):
        old = world.state.bays[0].endpoints
        actions = world.feed(effects.Exited(world.keys(0)[0], 1, None, "boom\nValueError: no\n"))
        (after,) = of(effects.After, actions)
        delays.append(after.delay_s)
        warming = world.last(MachineWarming)
        assert isinstance(warming, MachineWarming)
        assert 0 not in warming.endpoints  # nobody may plan with dead endpoints
        failed = world.last(MachineWarmingFailed)
        assert isinstance(failed, MachineWarmingFailed)
        assert (failed.slot, failed.rank, failed.attempts) == (0, 0, attempt)
        assert failed.error == "its process ended with exit code 1: ValueError: no"
        assert failed.retry_in_s == after.delay_s
        world.feed(after.event)
        world.warm(1)  # the other bay had its turn meanwhile
        assert world.state.bays[0].endpoints != old
        assert world.keys(0)
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert not [fact for fact in world.published if isinstance(fact, WorkerExited)]
    assert world.state.phase == "standby"
    world.warm(0)
    assert world.state.bays[0].failures == 0


FAULT = f"""Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/venv/lib/python3.12/site-packages/torch/nn/linear.py", line 125 in forward
  File "{trainmover_executor.__path__[0]}/loop.py", line 80 in steps
  File "/home/ada/trainmover/train.py", line 19 in <module>
  File "<frozen runpy>", line 88 in _run_code
"""


def test_a_standby_whose_program_says_what_broke_is_quoted() -> None:
    world = standby(warm=())
    (key,) = world.keys(0)
    world.feed(effects.Said(key, Broke(rank=0, error="AssertionError", where="/a/train.py:19")))
    world.feed(effects.Exited(key, 1, None, "Traceback ..."))
    failed = world.last(MachineWarmingFailed)
    assert isinstance(failed, MachineWarmingFailed)
    assert (failed.error, failed.where) == ("AssertionError", "/a/train.py:19")


def test_a_ready_standby_that_dies_is_not_ready_any_more() -> None:
    world = standby()
    world.feed(effects.Exited(world.keys(0)[0], None, 11, FAULT))
    failed = world.last(MachineWarmingFailed)
    assert isinstance(failed, MachineWarmingFailed)
    assert failed.error == "its process was ended by SIGSEGV"
    assert failed.where == "/home/ada/trainmover/train.py:19"
    assert failed.attempts == 1
    warming = world.last(MachineWarming)
    assert isinstance(warming, MachineWarming)
    assert set(warming.endpoints) == {1}


# -- plans ------------------------------------------------------------------------------------


def test_a_stayer_forwards_a_plan_once() -> None:
    world = active(ranks=2)
    move = Move(slot=0, leaver="node-0", joiner="node-3")
    two = ("a:1", "a:2")
    plan = plan_for(world, member("node-3", endpoints=two), own(world), moves=(move,))
    forwards = of(effects.Forward, world.command(Prepare(plan=plan)))
    assert [f.key for f in forwards] == world.keys()
    assert not of(effects.Forward, world.command(Prepare(plan=plan)))


def test_the_leaver_of_a_planned_move_forwards_it() -> None:
    world = active()
    assert of(effects.Forward, world.command(Prepare(plan=leaving_plan(world))))


def test_a_plan_of_a_past_epoch_is_ignored() -> None:
    world = active()
    first = staying_plan(world)
    world.command(Prepare(plan=first))
    committed = PlanCommitted(migration="m1", machine=ME, rank=1, epoch=2, step=9)
    world.feed(effects.Reported(world.keys()[0], committed))
    assert world.state.epoch == 2
    assert committed in world.published
    late = leaving_plan(world, id="m0", kind="failure")
    assert not of(effects.Forward, world.command(Recover(plan=late)))
    assert world.state.phase == "active"  # and it did not fence itself


def test_the_joiner_forwards_to_the_bay_of_its_slot_and_is_promoted_by_the_commit() -> None:
    world = standby()
    plan = joining_plan(world, slot=1)
    (forward,) = of(effects.Forward, world.command(Prepare(plan=plan)))
    (key,) = world.keys(1)
    (other,) = world.keys(0)
    assert forward.key == key
    committed = PlanCommitted(migration="m1", machine=ME, rank=1, epoch=2, step=5)
    actions = world.feed(effects.Reported(key, committed))
    assert of(effects.End, actions) == [effects.End((other,), 0.0)]
    assert (world.state.phase, world.state.slot, world.state.epoch) == ("active", 1, 2)
    assert world.state.workers[key].role == "active"
    world.feed(effects.Exited(other, None, 9))
    assert not world.urgent


@pytest.mark.parametrize("kind", ["planned", "failure"])
def test_a_bay_that_waits_its_turn_is_started_at_once_for_a_plan(kind: MigrationKind) -> None:
    world = standby(warm=())
    plan = joining_plan(world, slot=1, kind=kind)
    command = Recover(plan=plan) if kind == "failure" else Prepare(plan=plan)
    actions = world.command(command)
    (spawn,) = of(effects.Spawn, actions)
    (forward,) = of(effects.Forward, actions)
    assert spawn.slot == 1
    assert forward.key == spawn.key


def test_a_standby_may_keep_fewer_slots_warm_than_it_listens_for() -> None:
    world = standby(warm=(), warm_limit=1)
    assert not of(effects.Spawn, world.warm(0))
    assert {slot: bay.phase for slot, bay in world.state.bays.items()} == {0: "ready", 1: "queued"}
    world.feed(effects.Exited(world.keys(0)[0], 1, None))
    assert world.keys(1), "its place is free"


def test_a_slot_that_a_plan_needs_takes_the_place_of_another() -> None:
    world = standby(warm=(0,), warm_limit=1)
    (kept,), old = world.keys(0), world.state.bays[0].endpoints
    actions = world.command(Prepare(plan=joining_plan(world, slot=1)))
    assert [end.keys for end in of(effects.End, actions)] == [(kept,)]
    assert [spawn.slot for spawn in of(effects.Spawn, actions)] == [1]
    told = [fact.endpoints for fact in world.published if isinstance(fact, MachineWarming)]
    assert 0 not in told[-2]  # nobody may plan with dead endpoints
    assert told[-1][0] != old
    world.feed(effects.Exited(kept, None, 9))
    assert not world.urgent
    world.warm(1)
    abort = AbortMigration(migration="m1", epoch=2, reason="test")
    assert not of(effects.Spawn, world.command(abort)), "it is warm for slot 1 from now on"
    assert world.state.bays[0].phase == "queued"


def test_no_further_bay_is_started_while_a_plan_is_under_way() -> None:
    world = standby(warm=(0,))
    world.command(Recover(plan=joining_plan(world, slot=0, kind="failure")))
    world.feed(effects.Exited(world.keys(1)[0], 1, None))  # frees the one warming place
    assert not of(effects.Spawn, world.feed(effects.RetryBay(0, 1)))
    abort = AbortMigration(migration="m1", epoch=2, reason="test")
    actions = world.command(abort)
    assert [f.message for f in of(effects.Forward, actions)] == [abort]
    assert [s.slot for s in of(effects.Spawn, actions)] == [1]


def test_a_plan_with_another_ring_is_refused_by_members() -> None:
    """Sums are taken in its order (INV-SAME-BITS)."""
    world = active()
    job = world.state.membership
    assert job is not None
    move = Move(slot=0, leaver="node-0", joiner="node-9")
    plan = plan_for(world, member("node-9"), own(world), moves=(move,))
    other = plan.membership.model_copy(update={"ring": (1, 0)})
    assert world.command(Prepare(plan=plan.model_copy(update={"membership": other}))) != []
    refusal = world.last(PlanFailed)
    assert isinstance(refusal, PlanFailed)
    assert (refusal.rank, refusal.step_safe) == (1, True)
    assert "another ring" in refusal.reason
    assert world.state.plan is None
    world.command(Prepare(plan=plan))
    assert world.state.plan == plan


def test_a_plan_that_names_sockets_we_do_not_have_is_refused_for_every_rank() -> None:
    world = standby()
    stranger = member(ME, endpoints=("10.1.1.1:9",))
    move = Move(slot=0, leaver="node-0", joiner=ME)
    plan = plan_for(world, stranger, member("node-2"), kind="failure", moves=(move,))
    assert not of(effects.Forward, world.command(Recover(plan=plan)))
    refusal = world.last(PlanFailed)
    assert isinstance(refusal, PlanFailed)
    assert (refusal.migration, refusal.rank, refusal.epoch) == ("m1", 0, 2)


def test_a_superseding_plan_for_another_slot_calls_the_first_off() -> None:
    world = standby()
    world.command(Recover(plan=joining_plan(world, slot=0, kind="failure")))
    second = joining_plan(world, slot=1, kind="failure", id="m2", epoch=3)
    forwards = of(effects.Forward, world.command(Recover(plan=second)))
    assert [(f.key, f.message.verb) for f in forwards] == [
        (world.keys(0)[0], "abort_migration"),
        (world.keys(1)[0], "recover"),
    ]


def test_a_plan_that_was_called_off_too_late_commits_all_the_same() -> None:
    world = standby()
    world.command(Prepare(plan=joining_plan(world, slot=0)))
    world.command(AbortMigration(migration="m1", epoch=2, reason="late"))
    committed = PlanCommitted(migration="m1", machine=ME, rank=0, epoch=2, step=5)
    world.feed(effects.Reported(world.keys(0)[0], committed))
    assert world.state.phase == "active"


def test_break_step_reaches_the_running_ranks_unless_it_is_stale() -> None:
    world = active()
    assert of(effects.Forward, world.command(BreakStep(epoch=1, reason="r")))
    assert not of(effects.Forward, world.command(BreakStep(epoch=0, reason="r")))


def test_a_zombie_fences_itself_and_offers_itself_anew() -> None:
    world = active()
    actions = world.command(Recover(plan=leaving_plan(world, kind="failure")))
    assert of(effects.End, actions) == [effects.End(tuple(world.keys()), 0.0)]
    assert not of(effects.Forward, actions)
    world.end_all()
    fact = world.last(MachineRegistered)
    assert isinstance(fact, MachineRegistered)
    assert fact.machine.generation == 1
    assert not world.urgent  # it was killed on purpose


# -- ends -------------------------------------------------------------------------------------


def test_release_ends_the_ranks_and_registers_with_a_new_generation() -> None:
    world = active()
    world.command(Prepare(plan=leaving_plan(world)))
    release = Release(generation=0, epoch=2, then="standby")
    actions = world.command(release)
    assert of(effects.End, actions) == [effects.End(tuple(world.keys()), 2.0)]
    world.command(release)
    world.end_all()
    assert world.state.generation == 1
    assert world.state.phase == "registered"
    assert not of(effects.End, world.command(release))
    assert world.state.generation == 1


def test_a_leaver_that_exits_by_itself_after_the_switch_is_not_reported() -> None:
    world = active()
    world.command(Prepare(plan=leaving_plan(world)))
    (key,) = world.keys()
    switched = PlanSwitched(migration="m1", machine=ME, rank=1, epoch=2, step=4, phases_s={})
    world.feed(effects.Reported(key, switched))
    world.feed(effects.Exited(key, 0, None))
    assert not world.urgent
    world.command(Release(generation=0, epoch=2, then="standby"))
    assert world.state.generation == 1


def test_a_leaver_that_is_released_has_time_for_its_threads() -> None:
    world = active()
    world.command(Prepare(plan=leaving_plan(world)))
    (key,) = world.keys()
    switched = PlanSwitched(migration="m1", machine=ME, rank=1, epoch=2, step=4, phases_s={})
    world.feed(effects.Reported(key, switched))
    actions = world.command(Release(generation=0, epoch=2, then="standby"))
    assert of(effects.End, actions) == [effects.End((key,), 60.0)]


@pytest.mark.parametrize(
    "command", [Stop(reason="over"), Release(generation=0, epoch=1, then="stop")]
)
def test_stop_ends_everything_then_the_agent(command: Command) -> None:
    world = active()
    actions = world.command(command)
    assert of(effects.End, actions)
    assert not of(effects.Exit, actions)
    assert of(effects.Exit, world.end_all()) == [effects.Exit(0)]


def test_a_signal_after_a_stop_keeps_the_exit_code_and_kills() -> None:
    world = active()
    world.command(Stop(reason="over"))
    actions = world.feed(effects.Terminate(143))
    assert of(effects.End, actions) == [effects.End(tuple(world.keys()), 0.0)]
    assert of(effects.Exit, world.end_all()) == [effects.Exit(0)]


def test_a_signal_ends_everything_with_its_own_exit_code() -> None:
    world = standby()
    world.feed(effects.Terminate(143))
    assert of(effects.Exit, world.end_all()) == [effects.Exit(143)]


def test_a_dead_rank_is_reported_at_once_and_takes_the_machine_along() -> None:
    world = active(ranks=2)
    first, second = world.keys()
    actions = world.feed(effects.Exited(first, 1, None, "Traceback: boom"))
    fact = world.urgent[0]
    assert isinstance(fact, WorkerExited)
    assert (fact.rank, fact.exit_code, fact.epoch) == (2, 1, 1)
    assert fact.last_words == "Traceback: boom"
    assert of(effects.End, actions) == [effects.End((second,), 0.0)]
    (after,) = of(effects.After, world.feed(effects.Exited(second, None, 9)))
    assert len(world.urgent) == 1  # the second was killed by us
    assert world.state.generation == 0
    world.feed(after.event)
    assert world.state.generation == 1
    assert world.state.phase == "registered"


def test_the_backoff_grows_with_crashes_and_progress_resets_it() -> None:
    world = active()
    delays = []
    for generation in range(4):
        (after,) = of(effects.After, world.feed(effects.Exited(world.keys()[0], 1, None)))
        delays.append(after.delay_s)
        world.feed(after.event)
        job = membership(member("node-0"), own(world), epoch=generation + 2)
        world.command(Start(generation=generation + 1, slot=1, membership=job))
        if generation == 2:
            progress = StepProgress(machine=ME, rank=1, epoch=1, step=1, step_s=0.1)
            world.feed(effects.Reported(world.keys()[0], progress))
    assert delays == [1.0, 2.0, 4.0, 1.0]


def test_one_rank_says_how_far_its_machine_is() -> None:
    world = active(ranks=2)
    workers = sorted(world.state.live, key=lambda worker: -worker.rank)
    for worker in workers:
        fact = StepProgress(machine=ME, rank=worker.rank, epoch=1, step=1, step_s=0.1)
        world.feed(effects.Reported(worker.key, fact))
    said = [fact.rank for fact in world.published if isinstance(fact, StepProgress)]
    assert said == [workers[-1].rank]


def test_release_with_stop_during_the_backoff_ends_the_agent() -> None:
    world = active()
    (after,) = of(effects.After, world.feed(effects.Exited(world.keys()[0], None, 9)))
    actions = world.command(Release(generation=0, epoch=2, then="stop"))
    assert of(effects.Exit, actions) == [effects.Exit(0)]
    assert not world.feed(after.event)


def test_a_joiner_that_dies_in_a_plan_is_reported_at_the_new_epoch() -> None:
    world = standby()
    world.command(Prepare(plan=joining_plan(world, slot=0)))
    world.feed(effects.Exited(world.keys(0)[0], None, 11))
    fact = world.urgent[0]
    assert isinstance(fact, WorkerExited)
    assert (fact.rank, fact.epoch, fact.signal) == (0, 2, 11)


def test_the_machine_is_finished_when_all_ranks_are() -> None:
    world = active(ranks=2)
    first, second = world.keys()
    for rank, key in ((2, first), (3, second)):
        world.feed(effects.Said(key, Done(rank=rank, step=100)))
    assert [f.rank for f in world.published if isinstance(f, WorkerFinished)] == [2, 3]
    assert not of(effects.Exit, world.feed(effects.Exited(first, 0, None)))
    assert of(effects.Exit, world.feed(effects.Exited(second, 0, None))) == [effects.Exit(0)]


def test_an_exit_with_zero_that_nobody_announced_is_a_loss() -> None:
    world = active()
    world.feed(effects.Exited(world.keys()[0], 0, None))
    assert isinstance(world.urgent[0], WorkerExited)


@pytest.mark.parametrize("failed", [False, True])
def test_a_standby_ends_with_the_job(failed: bool) -> None:
    world = standby()
    world.feed(effects.JobOver(failed=failed))
    assert of(effects.Exit, world.end_all()) == [effects.Exit(0)]


def test_ranks_that_are_done_are_left_to_finish_when_the_job_is() -> None:
    world = active()
    (key,) = world.keys()
    world.feed(effects.Said(key, Done(rank=1, step=3)))
    assert not of(effects.End, world.feed(effects.JobOver(failed=False)))
    assert of(effects.Exit, world.feed(effects.Exited(key, 0, None))) == [effects.Exit(0)]


def test_a_failed_job_ends_its_ranks() -> None:
    world = active()
    assert of(effects.End, world.feed(effects.JobOver(failed=True)))
    assert of(effects.Exit, world.end_all()) == [effects.Exit(1)]


def test_the_same_events_give_the_same_actions() -> None:
    assert standby().state == standby().state
    assert active().state == active().state


def test_what_an_earlier_planner_says_is_void():
    """INV-ONE-OWNER: it was frozen while another took its place."""
    world = World()
    world.feed(effects.Begin())
    world.command(Lead(term=7))
    actions = world.command(Stop(reason="the job is over", term=6))
    assert [one.event for one in actions if isinstance(one, effects.Log)] == ["command.ignored"]
    assert world.state.phase == "registered"
    assert world.command(Stop(reason="the job is over", term=7))
    assert world.state.phase == "finished"
