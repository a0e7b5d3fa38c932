"""The order of the ring: as few links leave a leaf or a pod as can be, and it stays."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmover.events.migration import JobFormed
from trainmover_planner.state.rings import crossings, least_crossings, shortest_ring

LEAVES = [{"leaf": f"l{number % 2}", "pod": "p"} for number in range(6)]
"""Machines that lie on two leaves by turns, so that the order of names is the worst."""

paths = st.integers(1, 3).flatmap(
    lambda depth: st.lists(
        st.tuples(*[st.sampled_from("abc")] * depth).map(tuple), min_size=1, max_size=7
    )
)


@given(paths)
def test_no_other_ring_crosses_fewer_links_at_any_level(paths):
    ring = shortest_ring(paths)
    assert sorted(ring) == list(range(len(paths)))
    found = crossings(paths, ring)
    every = [crossings(paths, (0, *rest)) for rest in itertools.permutations(range(1, len(paths)))]
    assert found == tuple(map(min, zip(*every, strict=True)))
    assert found == least_crossings(paths)


@given(paths)
def test_a_group_of_some_machines_has_a_best_ring_too(paths):
    """Groups of a job (one pipeline stage, say) go round in the order of the job's ring."""
    ring = shortest_ring(paths)
    for step in (2, 3):
        some = [paths[index] for index in ring if index % step == 0]  # the first is one of them
        assert crossings(some, range(len(some))) == least_crossings(some)


@given(paths)
def test_an_order_that_is_best_already_stays(paths):
    best = [paths[index] for index in shortest_ring(paths)]
    assert shortest_ring(best) == tuple(range(len(best)))


def formed(world):
    (fact,) = [fact for fact in world.facts() if isinstance(fact, JobFormed)]
    return fact


class TestFormation:
    def test_the_ring_goes_round_leaf_by_leaf_and_slots_keep_their_numbers(self, world_class):
        world = world_class(slots=6, spare=0)
        world.form(labels=LEAVES)
        assert [m.machine for m in world.membership.members] == [f"w-{i}" for i in range(6)]
        assert world.membership.ring == (0, 2, 4, 1, 3, 5)
        assert formed(world).membership == world.membership
        assert formed(world).crossings.words == (
            "2 of 6 links leave their leaf (6 before; 2 is the least)",
            "0 of 6 links leave their pod (0 before; 0 is the least)",
        )

    @pytest.mark.parametrize("labels", [(), [{"colour": "red"}, {"colour": "blue"}] * 3])
    def test_machines_that_do_not_say_where_they_are_are_in_the_order_of_slots(
        self, world_class, labels
    ):
        world = world_class(slots=6, spare=0)
        world.form(labels=labels)
        assert world.membership.ring == ()
        assert formed(world).crossings is None

    def test_the_order_of_slots_stays_where_it_is_as_good(self, world_class):
        world = world_class(slots=6, spare=0)
        world.form(labels=sorted(LEAVES, key=lambda each: each["leaf"]))
        assert world.membership.ring == ()
        assert formed(world).crossings.after == (2, 0)

    def test_what_is_no_level_of_the_topology_does_not_count(self, world_class):
        world = world_class(slots=6, spare=0, topology=("pod",))
        world.form(labels=LEAVES)
        assert world.membership.ring == ()

    def test_machines_without_a_label_are_together(self, world_class):
        world = world_class(slots=6, spare=0)
        world.form(labels=[{"leaf": "l0"}, {}] * 3)
        assert world.membership.ring == (0, 2, 4, 1, 3, 5)


class TestMoves:
    @pytest.fixture
    def world(self, world_class):
        """Two leaves by turns; w-6 is a standby on the leaf of even machines, w-7 on another."""
        world = world_class(slots=6, spare=2)
        world.form(labels=[*LEAVES, {"leaf": "l0", "pod": "p"}, {"leaf": "l9", "pod": "p"}])
        return world

    def test_a_plan_says_what_the_ring_comes_to(self, world):
        near = world.ask("migrate", machine="w-2", dry_run=True)["plan"]
        far = world.ask("migrate", machine="w-2", to="w-7", dry_run=True)["plan"]
        assert near["moves"][0]["joiner"] == "w-6", "it is near to those beside it in the ring"
        assert near["crossings"] == {
            "levels": ["leaf", "pod"],
            "links": 6,
            "before": [2, 0],
            "after": [2, 0],
            "least": [2, 0],
        }
        assert (far["crossings"]["after"], far["crossings"]["least"]) == ([4, 0], [3, 0])

    def test_the_joiner_takes_the_leavers_place(self, world):
        ring = world.membership.ring
        world.ask("migrate", machine="w-2", to="w-7")
        world.finish(world.last_plan())
        assert world.membership.slot_of_machine("w-7") == 2
        assert world.membership.ring == ring

    def test_so_it_does_after_a_crash_and_with_another_planner(self, world):
        ring = world.membership.ring
        world.failed("w-3")
        assert world.last_plan().membership.ring == ring
        assert world.last_plan().crossings is None
        world.restart()
        world.finish(world.last_plan())
        assert world.membership.ring == ring != ()
