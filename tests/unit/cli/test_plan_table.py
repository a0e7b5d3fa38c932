"""What a plan looks like to people."""

from __future__ import annotations

import io

from rich.console import Console
from tests.unit import factories as make

from trainmover.job.plan import Crossings, Move, Plan
from trainmover_console.cli.requests import plan_table


def shown(crossings: Crossings | None) -> str:
    written = io.StringIO()
    plan = Plan(
        id="m-0001",
        job="j",
        kind="planned",
        from_epoch=1,
        membership=make.MOVE.after,
        moves=(Move(slot=1, leaver="node-1", joiner="node-2"),),
        sources={1: 1},
        crossings=crossings,
    )
    Console(file=written, width=120).print(plan_table(plan))
    return written.getvalue()


def test_it_says_what_becomes_of_the_ring() -> None:
    one = Crossings(levels=("leaf",), links=2, before=(0,), after=(2,), least=(2,))
    assert "ring: 2 of 2 links leave their leaf (0 before; 2 is the least)" in shown(one)


def test_where_nobody_says_where_machines_are_it_says_nothing_of_it() -> None:
    assert "ring" not in shown(None)
    assert "node-2" in shown(None)
