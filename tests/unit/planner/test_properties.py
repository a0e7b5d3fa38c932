"""Whatever happens, in whatever order, however often: the invariants of the protocol hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.commands import Prepare, Recover
from trainmover.events import executor
from trainmover.events.migration import JobFormed, MigrationCommitted
from trainmover_planner.state.effects import SendCommand

REPORTS = (
    executor.PlanPrepared,
    executor.PlanSwitched,
    executor.PlanCommitted,
    executor.PlanFailed,
)
MACHINES = st.integers(0, 5).map("w-{}".format)

ACTIONS = st.one_of(
    st.tuples(st.just("failed"), MACHINES),
    st.tuples(st.just("straggler"), MACHINES),
    st.tuples(st.just("migrate"), MACHINES),
    st.tuples(st.just("together"), MACHINES, MACHINES),
    st.tuples(st.just("abort"), st.integers(1, 6)),
    st.tuples(st.just("again"), MACHINES),
    st.tuples(st.just("ready"), MACHINES),
    st.tuples(st.just("broken"), st.sets(MACHINES, max_size=6), st.integers(0, 2)),
    st.tuples(
        st.just("report"), st.sampled_from(REPORTS), st.integers(0, 3), st.sets(st.integers(0, 2))
    ),
    st.tuples(st.just("finish"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.floats(0.01, 40)),
    st.tuples(st.just("duplicate"), st.integers(0, 30)),
    st.tuples(st.just("restart"), st.integers(0, 4)),
)


def act(world, action):  # noqa: C901 - one line for each thing that can happen
    verb, *args = action
    plans, state = world.plans(), world.state
    match verb:
        case "failed":
            world.failed(*args)
        case "straggler":
            world.straggler(*args)
        case "migrate" | "together":
            world.ask("migrate", machine=args[0], others=args[1:])
        case "abort":
            world.ask("abort", migration=f"m-{args[0]:04d}")
        case "again":
            host = state.inventory.get(args[0])
            world.register(args[0], generation=host.machine.generation + 1)
        case "ready":
            host = state.inventory.get(args[0])
            world.warming(args[0], host.machine.generation)
            world.ready(args[0], host.machine.generation)
        case "broken":
            world.broken(args[0], epoch=max(1, world.membership.epoch + args[1] - 1))
        case "report" if plans:
            kind, back, ranks = args
            world.report(kind, plans[-1 - back % len(plans)], ranks)
        case "finish" if plans:
            plan = plans[-1 - args[0] % len(plans)]
            world.report(executor.PlanSwitched, plan)
            world.report(executor.PlanCommitted, plan)
        case "wait":
            world.wait(*args)
        case "duplicate":
            others = [fact for _, fact in world.stream if fact.source != "/planner"]
            world.do(others[-1 - args[0] % len(others)])
        case "restart":
            world.restart(lose=args[0])


def check(world):
    memberships, commands, rings = {}, {}, set()
    for payload in world.facts():
        if isinstance(payload, JobFormed | MigrationCommitted):
            epoch = payload.membership.epoch
            rings.add(payload.membership.ring)
            assert memberships.setdefault(epoch, payload.membership) == payload.membership
    for item in world.log:
        if not isinstance(item, SendCommand):
            continue
        # The bus keeps the first command of an id: a second one must mean the same.
        # (Reasons are for people, and a standby may hear of a later membership. It warms up in the
        # order that it heard first: another one may seem better to a planner that starts over.)
        warm = item.command.verb == "warm"
        meaning = item.command.model_dump(exclude={"reason", "membership"} if warm else {"reason"})
        if warm:
            meaning["slots"] = sorted(meaning["slots"])
        assert commands.setdefault((item.machine, item.id), meaning) == meaning
        if isinstance(item.command, Prepare | Recover):
            after = item.command.plan.membership
            rings.add(after.ring)
            # INV-EPOCH-MONOTONE and INV-ONE-OWNER: an epoch means one membership, for ever.
            assert memberships.setdefault(after.epoch, after) == after
            names = [member.machine for member in after.members]
            assert len(set(names)) == len(names)
            plan = item.command.plan
            givers = {giver for rank, giver in plan.sources.items() if giver != rank}
            assert not givers & plan.joining_ranks, "a joining rank has nothing to hand out"
    assert len(rings) <= 1, "sums are taken in the order of the ring (INV-SAME-BITS)"
    state = world.state
    assert sum(one.open for one in state.migrations.values()) <= 1
    assert state.membership is None or state.membership.epoch <= state.issued
    flight = state.flight
    if flight is not None and flight.plan is not None and flight.kind == "failure":
        assert not state.dead_slots(flight.plan.membership), "a plan gives a slot to a dead machine"


@settings(max_examples=120, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=25), slots=st.sampled_from([3, 4]))
def test_invariants_hold_whatever_happens(world_class, actions, slots):
    world = world_class(slots=slots, spare=6 - slots)
    world.form(labels=[{"leaf": f"l{number % 2}"} for number in range(6)])
    for action in actions:
        if world.state.over:
            break
        act(world, action)
        check(world)


@settings(max_examples=80, deadline=None)
@given(actions=st.lists(ACTIONS.filter(lambda a: a[0] != "restart"), max_size=15))
def test_reading_the_facts_again_gives_the_same_job(world_class, actions):
    world = world_class(slots=3, spare=3)
    world.form()
    for action in actions:
        if not world.state.over:
            act(world, action)
    before = world.state
    world.restart()
    after = world.state
    assert after.membership == before.membership
    assert (after.phase, after.inventory) == (before.phase, before.inventory)
    assert {m.id: (m.phase, m.plan) for m in before.migrations.values()}.items() <= {
        m.id: (m.phase, m.plan) for m in after.migrations.values()
    }.items()
    assert world.facts(world.restart()) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_order_of_evidence_does_not_matter(world_class, data):
    """Two machines die; exits, broken steps and reports come in any order: the same slots."""
    evidence = [("failed", "w-1"), ("failed", "w-2"), *[("broken", f"w-{n}") for n in (0, 3)]]
    order = data.draw(st.permutations(evidence))
    world = world_class(slots=4, spare=2)
    world.form()
    for verb, name in order:
        world.failed(name) if verb == "failed" else world.broken([name])
    plan = world.last_plan()
    assert {move.slot for move in plan.moves} == {1, 2}
    assert {move.joiner for move in plan.moves} == {"w-4", "w-5"}
    world.finish(plan)
