"""Which standby takes which slot: the least of what speaks against them."""

from __future__ import annotations

import itertools
import random

import pytest

from trainmover.events import incident
from trainmover.events.executor import WorkerCosts
from trainmover_planner.machines.choice import WEIGHTS as W
from trainmover_planner.machines.matching import cheapest

NEAR, FAR = {"leaf": "l1", "pod": "p1"}, {"leaf": "l9", "pod": "p9"}


def brute(costs):
    """(slots filled, least cost) over all assignments."""
    slots = list(costs)
    names = sorted({name for row in costs.values() for name in row})
    best = (0, 0)
    for chosen in itertools.product([None, *names], repeat=len(slots)):
        taken = [name for name in chosen if name is not None]
        pairs = [(s, n) for s, n in zip(slots, chosen, strict=True) if n is not None]
        if len(set(taken)) < len(taken) or any(n not in costs[s] for s, n in pairs):
            continue
        found = (len(pairs), -sum(costs[s][n] for s, n in pairs))
        best = max(best, found)
    return best


@pytest.mark.parametrize("seed", range(200))
def test_no_other_assignment_is_cheaper(seed):
    chance = random.Random(seed)
    names = [f"n{i}" for i in range(chance.randint(1, 5))]
    costs = {
        slot: {
            name: chance.choice([0, 1, 2, 10, 1_000, 1 << 30])
            for name in names
            if chance.random() < 0.7
        }
        for slot in range(chance.randint(1, 4))
    }
    found = cheapest(costs)
    assert len(set(found.values())) == len(found)
    assert (len(found), -sum(costs[s][n] for s, n in found.items())) == brute(costs)


def test_nobody_is_left_for_no_slots():
    assert cheapest({}) == {}
    assert cheapest({3: {}}) == {}


def test_machines_that_cost_the_same_are_taken_in_their_order():
    costs = {slot: {f"n{i}": 5 for i in range(4)} for slot in (7, 8, 9)}
    assert cheapest(costs) == {7: "n0", 8: "n1", 9: "n2"}


def add(world, spares):
    """Standbys, after the members: the job forms with the last one."""
    for name, labels in spares:
        world.register(name, labels=labels)
    for name, _ in spares:
        world.warming(name)
        world.ready(name)
    world.layouts()


class Cluster:
    """A job of three slots on one leaf; ``spares`` name standbys and their labels."""

    def __init__(self, world_class, *spares, **settings):
        self.world = world_class(slots=3, spare=len(spares), **settings)
        for number in range(3):
            self.world.register(f"w-{number}", labels=NEAR)
        add(self.world, spares)

    def plan(self, *machines):
        first, *others = machines
        reply = self.world.ask("migrate", machine=first, others=others, dry_run=True)
        assert reply["ok"], reply
        return reply["plan"]

    def draws(self, machine, *, rank, behind):
        """A standby says how far it is with data that can only be drawn."""
        self.world.say(WorkerCosts(machine=machine, rank=rank, drawn="Lines", behind=behind))

    def joiner(self):
        (move,) = self.plan("w-1")["moves"]
        return move["joiner"]


def notice(machine):
    return incident.IncidentOpened(
        id=f"n-{machine}",
        kind="notice",
        machine=machine,
        slot=None,
        epoch=1,
        confidence=1.0,
        summary="it goes at noon",
        detector="notices",
        advice="none",
    )


def test_the_nearest_standby_is_chosen(world_class):
    cluster = Cluster(world_class, ("y", FAR), ("z", NEAR))
    assert cluster.joiner() == "z"
    assert [one["costs"] for one in cluster.plan("w-1")["candidates"]] == [
        {"fresh": len(W.ages_s) * W.fresh},
        {"fresh": len(W.ages_s) * W.fresh, "far": 2 * 4 * W.far},
    ], "it is in another pod than both neighbours, and pod is the fourth level"


def test_one_that_has_still_to_draw_data_comes_after_those_that_are_there(world_class):
    cluster = Cluster(world_class, ("y", NEAR), ("z", FAR))
    assert cluster.joiner() == "y"
    cluster.draws("y", rank=1, behind=12_000)
    cluster.draws("y", rank=7, behind=12_000)  # of no slot
    assert cluster.joiner() == "z"
    assert "behind" in cluster.plan("w-1")["candidates"][1]["costs"]
    assert "behind" not in cluster.plan("w-2")["candidates"][0]["costs"], "another slot"
    cluster.draws("y", rank=1, behind=0)
    assert cluster.joiner() == "y"


def test_what_is_near_is_for_the_operator_to_say(world_class):
    spares = (("y", {"pod": "p1", "row": "2"}), ("z", {"pod": "p2", "row": "1"}))
    world = world_class(slots=2, spare=2, topology=("row",))
    for number in range(2):
        world.register(f"w-{number}", labels={"pod": "p1", "row": "1"})
    add(world, spares)
    assert world.ask("migrate", machine="w-1", dry_run=True)["plan"]["moves"][0]["joiner"] == "z"


def test_labels_that_a_machine_does_not_have_say_nothing(world_class):
    cluster = Cluster(world_class, ("y", {}), ("z", NEAR))
    assert cluster.joiner() == "y"


def test_a_standby_that_is_about_to_go_is_chosen_last(world_class):
    cluster = Cluster(world_class, ("y", NEAR), ("z", FAR))
    cluster.world.say(notice("y"), "/detector")
    assert cluster.joiner() == "z"


def test_a_standby_that_is_about_to_go_is_the_last_for_a_crash_too(world_class):
    cluster = Cluster(world_class, ("y", NEAR), ("z", FAR))
    cluster.world.say(notice("y"), "/detector")
    cluster.world.failed("w-1")
    (move,) = cluster.world.last_plan().moves
    assert move.joiner == "z"
    chosen = [one.machine for one in cluster.world.last_plan().candidates if one.chosen]
    assert chosen == ["z"]


def test_a_machine_that_had_trouble_lately_is_avoided(world_class):
    cluster = Cluster(world_class, ("y", NEAR), ("z", FAR))
    world = cluster.world
    world.advised("y", advice="none")
    assert cluster.joiner() == "z"
    (costs,) = (c["costs"] for c in cluster.plan("w-1")["candidates"] if c["machine"] == "y")
    assert costs["trouble"] == W.trouble
    world.restart()
    assert cluster.joiner() == "z", "a planner that starts over knows it"
    world.wait(90_000)
    assert cluster.joiner() == "y", "it was more than a day ago"


def test_a_detector_in_a_dry_run_and_strangers_leave_no_trouble(world_class):
    cluster = Cluster(world_class, ("y", NEAR), ("z", FAR))
    opened = notice("y").model_copy(update={"kind": "hang", "mode": "shadow"})
    cluster.world.say(opened, "/detector")
    assert cluster.joiner() == "y"
    active = {"kind": "hang", "id": "i-1", "machine": "nobody"}
    cluster.world.say(opened.model_copy(update={**active, "mode": "active"}), "/detector")
    assert dict(cluster.world.state.troubles) == {}, "names that never registered are not kept"


def test_a_ready_machine_far_away_comes_before_a_cold_one(world_class):
    cluster = Cluster(world_class, ("y", NEAR), ("z", FAR))
    cluster.world.register("y", 1, labels=NEAR, warm_limit=1)
    cluster.world.warming("y", 1)
    cluster.world.ready("y", 1, slots=[0])
    assert cluster.joiner() == "z"


def test_a_machine_that_has_just_come_yields(world_class):
    cluster = Cluster(world_class, ("z", NEAR))
    cluster.world.wait(W.ages_s[0])
    cluster.world.register("y", labels=NEAR)
    cluster.world.warming("y")
    cluster.world.ready("y")
    assert cluster.joiner() == "z"


def test_a_standby_warms_up_first_for_the_slots_that_are_likeliest_to_need_it(world_class):
    """A notice outweighs trouble, which outweighs a slow pace; what is equal keeps its order."""
    world = world_class(slots=4, spare=0, automation="paused")
    world.form()
    world.slowest("w-3", 0.05)
    world.advised("w-1", advice="none")
    world.say(notice("w-2"), "/detector")
    asked = {}
    for name, count in (("y", 1), ("z", 2), ("x", None)):
        ((_, warm),) = world.sent(world.register(name, warm_limit=count))
        asked[name] = warm.slots
    assert asked == {
        "y": (2, 1, 3, 0),
        "z": (1, 3, 0, 2),  # it begins where the one before it ended
        "x": (2, 1, 3, 0),
    }


def test_two_slots_share_what_is_cheapest_together(world_class):
    world = world_class(slots=4, spare=2)
    for number in range(4):
        world.register(f"w-{number}", labels={"leaf": f"l{number // 2}"})
    add(world, [("y", {"leaf": "l1"}), ("z", {"leaf": "l0"})])
    plan = world.ask("migrate", machine="w-1", others=["w-3"], dry_run=True)["plan"]
    # Each slot has one neighbour on either leaf: all is equal, and the order of names decides.
    assert [m["joiner"] for m in plan["moves"]] == ["y", "z"]


def test_a_plan_names_four_candidates_of_a_slot_at_most(world_class):
    cluster = Cluster(world_class, *((f"x-{i}", NEAR) for i in range(6)))
    told = cluster.plan("w-1")["candidates"]
    assert [one["machine"] for one in told] == ["x-0", "x-1", "x-2", "x-3"]
    assert [one["chosen"] for one in told] == [True, False, False, False]
