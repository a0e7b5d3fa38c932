from __future__ import annotations

import pytest
from pydantic import ValidationError

from trainmover.commands import Prepare, Recover, parse_command
from trainmover.job.plan import Crossings, Move, Plan
from trainmover.job.topology import Layout, Member, Membership


def membership_of(epoch, *names, ranks=2):
    return Membership(
        epoch=epoch,
        layout=Layout(slots=len(names), ranks_per_slot=ranks),
        members=tuple(
            Member(machine=n, generation=0, endpoints=tuple(f"{n}:{i}" for i in range(ranks)))
            for n in names
        ),
    )


def fields(**changes):
    return {
        "id": "m-0001",
        "job": "demo",
        "kind": "planned",
        "from_epoch": 1,
        "membership": membership_of(2, "a", "x"),
        "moves": (Move(slot=1, leaver="b", joiner="x"),),
        "sources": {2: 2, 3: 3},
    } | changes


def test_a_plan_knows_who_joins():
    plan = Plan(**fields())
    assert plan.epoch == 2
    assert plan.joining_ranks == {2, 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"membership": membership_of(1, "a", "x")}, "epoch must grow: 1 -> 1"),
        ({"from_epoch": 2}, "epoch must grow"),
        ({"moves": (), "sources": {}}, "moves at least one slot"),
        ({"membership": membership_of(2, "a", "y")}, "does not put x into slot 1"),
        ({"sources": {2: 2}}, r"must name ranks \[2, 3\]"),
        ({"sources": {2: 3, 3: 3}}, r"ranks \[3\] join themselves"),
        ({"moves": (Move(slot=1, leaver="b", joiner="x"),) * 2}, "hands twice"),
        ({"sources": {1: 1, 2: 2, 3: 3}}, r"must name ranks \[2, 3\]"),
    ],
)
def test_a_plan_is_consistent(changes, message):
    with pytest.raises(ValidationError, match=message):
        Plan(**fields(**changes))


def test_a_recovery_may_move_nobody():
    plan = Plan(**fields(kind="failure", moves=(), sources={}))
    assert plan.joining_ranks == frozenset()


@pytest.mark.parametrize("kind", [Prepare, Recover])
def test_a_plan_survives_the_wire(kind):
    command = kind(plan=Plan(**fields()))
    assert parse_command(command.model_dump_json()) == command


def test_crossings_are_told_for_each_level():
    crossings = Crossings(
        levels=("leaf", "pod"), links=16, before=(2, 0), after=(4, 0), least=(3, 0)
    )
    assert crossings.words == (
        "4 of 16 links leave their leaf (2 before; 3 is the least)",
        "0 of 16 links leave their pod (0 before; 0 is the least)",
    )
    assert Plan(**fields(crossings=crossings)).crossings == crossings
    with pytest.raises(ValidationError, match=r"one count for each of \('leaf',\)"):
        Crossings(levels=("leaf",), links=16, before=(2, 0), after=(4,), least=(3,))
