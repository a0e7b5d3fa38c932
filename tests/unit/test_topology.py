from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainmover.job.topology import Layout, Member, Membership


def member(name, generation=0, ranks=1):
    endpoints = tuple(f"{name}:{generation}{local}" for local in range(ranks))
    return Member(machine=name, generation=generation, endpoints=endpoints)


def membership_of(*names, ranks=1, epoch=1, ring=()):
    return Membership(
        epoch=epoch,
        layout=Layout(slots=len(names), ranks_per_slot=ranks),
        members=tuple(member(name, ranks=ranks) for name in names),
        ring=ring,
    )


@given(slots=st.integers(1, 40), ranks=st.integers(1, 16))
def test_slots_partition_the_ranks(slots, ranks):
    layout = Layout(slots=slots, ranks_per_slot=ranks)
    owned = [rank for slot in range(slots) for rank in layout.ranks_of(slot)]
    assert owned == list(range(layout.world_size))
    assert all(rank in layout.ranks_of(layout.slot_of(rank)) for rank in owned)


@pytest.mark.parametrize("outside", [-1, 4])
def test_outside_of_the_layout(outside):
    layout = Layout(slots=4)
    with pytest.raises(IndexError, match=r"outside 0\.\.3"):
        layout.ranks_of(outside)
    with pytest.raises(IndexError, match=r"outside 0\.\.3"):
        layout.slot_of(outside)


def test_looking_up():
    membership = membership_of("a", "b", ranks=2)
    assert membership.endpoint_of(3) == "b:01"
    assert membership.machine_of(1) == "a"
    assert membership.slot_of_machine("b") == 1
    assert membership.slot_of_machine("c") is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((member("a"),), "1 members for 2 slots"),
        ((member("a"), member("a", 1)), "fills two slots"),
        ((member("a"), member("b", ranks=2)), "machine b has 2 endpoints"),
    ],
)
def test_a_membership_is_whole(members, message):
    with pytest.raises(ValidationError, match=message):
        Membership(epoch=1, layout=Layout(slots=2), members=members)


def test_replace_and_delta():
    before = membership_of("a", "b", "c", ranks=2)
    after = before.replace({1: member("x", ranks=2)})
    assert after.epoch == 2
    assert [m.machine for m in after.members] == ["a", "x", "c"]
    assert before.changed_slots(after) == {1}
    assert before.changed_ranks(after) == {2, 3}
    assert before.replace({}, epoch=7).epoch == 7
    reborn = before.replace({1: member("b", 1, ranks=2)})
    assert before.changed_slots(reborn) == {1}, "a new incarnation is another process"


def test_a_machine_cannot_take_a_second_slot():
    with pytest.raises(ValidationError, match="fills two slots"):
        membership_of("a", "b").replace({1: member("a")})


def test_readers_are_tolerant_and_nothing_changes():
    membership = membership_of("a", "b")
    parsed = Membership.model_validate({**membership.model_dump(), "colour": "red"})
    assert parsed == membership
    with pytest.raises(ValidationError):
        parsed.epoch = 3  # type: ignore[misc]


class TestRing:
    def test_it_is_that_of_the_numbers_where_none_is_named(self):
        one = membership_of("a", "b", "c", "d", ranks=2)
        assert one.around(range(8)) == tuple(range(8))
        assert one.around([5, 1, 3]) == (0, 1, 2)
        assert one.beside(0) == {1, 3}
        assert membership_of("a", "b").beside(0) == {1}
        assert membership_of("a").beside(0) == frozenset()

    def test_a_group_goes_round_in_the_order_of_its_slots(self):
        one = membership_of("a", "b", "c", "d", ranks=2, ring=(2, 0, 3, 1))
        assert one.around(range(8)) == (4, 5, 0, 1, 6, 7, 2, 3)
        assert one.around([1, 3, 5, 7]) == (2, 0, 3, 1)
        assert one.around([0, 2, 1, 3]) == (0, 2, 1, 3)
        assert [one.beside(slot) for slot in range(4)] == [{2, 3}, {3, 2}, {1, 0}, {0, 1}]

    def test_it_stays_when_machines_change(self):
        one = membership_of("a", "b", "c", ring=(1, 0, 2))
        assert one.replace({0: member("x")}).replace({}, epoch=9).ring == (1, 0, 2)

    @pytest.mark.parametrize("ring", [(0, 1), (0, 1, 1), (1, 2, 3), (0, 1, 2, 3)])
    def test_it_names_each_slot_once(self, ring):
        with pytest.raises(ValidationError, match="each of 3 slots once"):
            membership_of("a", "b", "c", ring=ring)
