"""Whatever happens in whatever order, hours long: a declared policy is kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.events.incident import IncidentClosed, IncidentOpened
from trainmover.events.migration import MigrationApproved
from trainmover.policy import Rebalance, Rule
from trainmover.protocol.table import Phase
from trainmover_planner.machines.assignment import standbys

HOUR_S, DWELL_S, COOLDOWN_S = 3_600.0, 120.0, 300.0
MOST, OF_A_RACK, RESERVE = 4, 2, 1
EVERY_S, LEAST = 1_200.0, 0.03

ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("slow", "slow", "slowest", "slowest", "slowest", "quick", "wait", "wait"),
                *("restart", "finish", "finish", "add"),
            ]
        ),
        st.integers(0, 40),
    ),
    max_size=30,
)


def make(world_class, *, spare: int = 4, **declared):
    rules = (Rule(kind=("straggler",), dwell_s=DWELL_S, then="act"),)
    policy = {
        "rules": rules,
        "keep_reserve": RESERVE,
        "moves_per_hour": MOST,
        "moves_per_hour_by": {"rack": OF_A_RACK},
        "cooldown_s": COOLDOWN_S,
        "rebalance": Rebalance(every_s=EVERY_S, least=LEAST),
        "prepare_deadline_s": 1e6,  # machines finish when the test says so
    }
    world = world_class(spare=spare, **{**policy, **declared})
    for number in range(4 + spare):
        world.register(f"w-{number}", labels={"rack": f"r{number % 2}"})
    for number in range(4, 4 + spare):
        world.warming(f"w-{number}")
        world.ready(f"w-{number}")
    world.layouts()
    world.added = 4 + spare
    return world


def act(world, what: str, number: int) -> None:
    match what:
        case "slow":
            world.straggler(world.membership.members[number % 4].machine)
        case "slowest":
            name = world.membership.members[number % 4].machine
            for one in list(world.state.incidents.values()):
                if one.kind == "slowest":  # one is, at a look
                    world.say(IncidentClosed(id=one.id, reason="another look"), "/detector")
            world.slowest(name, pace(name) + 0.005 * (number // 4 % 3))
        case "quick":
            world.say(IncidentClosed(id=f"i-{number % (world.incidents + 1)}", reason="quick"))
        case "wait":
            world.wait(number * 40.0)
        case "restart":
            world.restart(lose=number % 3)
        case "finish":
            finish(world)
        case "add":
            name = f"w-{world.added}"
            world.added += 1
            world.register(name, labels={"rack": f"r{number % 2}"})
            world.warming(name)
            world.ready(name)


def finish(world) -> None:
    flight = world.state.flight
    if flight is not None and flight.phase is not Phase.PROPOSED and flight.plan is not None:
        world.finish(flight.plan)
        for move in flight.plan.moves if exchanges(flight) else ():
            generation = world.state.inventory.get(move.leaver).machine.generation + 1
            world.register(move.leaver, generation, labels={"rack": f"r{parity(move.leaver)}"})
            world.warming(move.leaver, generation)
            world.ready(move.leaver, generation)


def exchanges(one) -> bool:
    """Whether it is a move that rebalances."""
    return one.cause.startswith("rebalance: ")


def pace(name: str) -> float:
    """How late a machine is, as a share of a step: some are alike, none changes."""
    return 0.02 * (7 * int(name.removeprefix("w-")) % 5)


def check(world) -> None:
    """What stands in the stream, which is what happened."""
    moves = [
        (at_s, fact.payload)
        for at_s, fact in world.stream
        if isinstance(fact.payload, MigrationApproved) and fact.payload.approved_by == "policy"
    ]
    opened: dict[str, float] = {}
    for at_s, fact in world.stream:
        if isinstance(fact.payload, IncidentOpened):
            opened[fact.payload.machine] = at_s
    for at_s, one in moves:
        hour = [other for other_s, other in moves if at_s - HOUR_S < other_s <= at_s]
        assert len(hour) <= MOST
        rack = [other for other in hour if parity(other.leaver) == parity(one.leaver)]
        assert len(rack) <= OF_A_RACK
        again = [s for s, other in moves if other.slot == one.slot and 0 < at_s - s < COOLDOWN_S]
        assert not again, "no flapping"
    check_exchanges(world)


def check_exchanges(world) -> None:
    """Machines are exchanged for better ones alone, and not too often."""
    measured: dict[str, float] = {}
    at: list[float] = []
    for at_s, fact in world.stream:
        match fact.payload:
            case IncidentOpened(kind="slowest", machine=str() as name, evidence=evidence):
                measured[name] = evidence["lateness"]
            case MigrationApproved() as one if exchanges(one):
                assert measured[one.leaver] >= LEAST
                assert measured.get(one.joiner, 0.0) <= measured[one.leaver] - LEAST + 1e-9
                assert all(at_s >= before_s + EVERY_S for before_s in at)
                at.append(at_s)
            case _:
                pass


def parity(name: str) -> int:
    return int(name.removeprefix("w-")) % 2


@settings(max_examples=60, deadline=None)
@given(acts=ACTS)
def test_a_policy_is_kept(world_class, acts) -> None:
    world = make(world_class)
    for what, number in acts:
        before = world.state.flight
        act(world, what, number)
        flight = world.state.flight
        if flight is not None and (before is None or before.id != flight.id):
            assert sum(bool(host.ready) for host in standbys(world.state)) >= RESERVE
        check(world)


EXCHANGES = st.lists(
    st.tuples(st.sampled_from(["slowest", "finish", "wait", "restart"]), st.integers(0, 40)),
    min_size=40,
    max_size=80,
)


@settings(max_examples=40, deadline=None)
@given(acts=EXCHANGES)
def test_nobody_is_exchanged_back_and_forth(world_class, acts) -> None:
    world = make(world_class, spare=2, keep_reserve=0, moves_per_hour=None, moves_per_hour_by={})
    for what, number in acts:
        act(world, what, number)
        check_exchanges(world)
    # Each machine may prove itself once; whom it is exchanged for again is better by ``LEAST``.
    assert len(moved_back(world)) <= 2


def moved_back(world) -> list[str]:
    """Machines that were exchanged for one that had left before."""
    left: set[str] = set()
    back: list[str] = []
    for _, fact in world.stream:
        if isinstance(fact.payload, MigrationApproved) and exchanges(fact.payload):
            back += [fact.payload.joiner] if fact.payload.joiner in left else []
            left.add(fact.payload.leaver)
    return back


@settings(max_examples=25, deadline=None)
@given(acts=ACTS)
def test_whoever_stays_slow_is_moved_in_the_end(world_class, acts) -> None:
    world = make(world_class)
    for what, number in acts:
        act(world, what, number)
    finish(world)
    slow = world.membership.members[1].machine
    world.straggler(slow)
    for number in range(5):
        act(world, "add", number)
    for _ in range(120):
        world.wait(DWELL_S)
        finish(world)
    assert world.membership.slot_of_machine(slow) is None
