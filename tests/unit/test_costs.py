"""What a job pays for being movable is shown in a line each."""

from __future__ import annotations

from rich.console import Console
from tests.unit import factories as make
from tests.unit.test_view import view_of

from trainmover.events import migration
from trainmover.events.executor import WorkerCosts
from trainmover_console.cli.daily.status import _status_table
from trainmover_console.view.costs import cost_lines

FORMED = migration.JobFormed(membership=make.membership_of("w-0", "w-1"), standbys=("spare",))
AT_END = WorkerCosts(
    machine="w-1", rank=1, vote="end", kept_bytes=1_200_000, keep_s=0.0031, because="it alternates"
)
FRONT = WorkerCosts(machine="w-0", rank=0, vote="front", drawn="generator")
STANDBY = WorkerCosts(machine="spare", rank=1, drawn="generator", drawing_s=4.21)
VOTE = (
    "votes at the end of the body: parameters and optimizers are kept, 1.2 MB and 3.1 ms a step, "
    "because it alternates"
)
DATA = "data: generator can be followed only by drawing what was used: 4.2 s at spare"


def test_status_shows_where_the_job_votes_and_what_standbys_draw() -> None:
    view = view_of(FORMED, FRONT, AT_END, STANDBY)
    assert cost_lines(view.costs) == [VOTE, DATA]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(_status_table(view, None))
    shown = capture.get()
    assert VOTE in shown
    assert DATA in shown
    assert [one["machine"] for one in view.as_data()["costs"]] == ["spare", "w-0", "w-1"]


def test_status_shows_that_a_standby_has_to_draw_more() -> None:
    behind = STANDBY.model_copy(update={"behind": 12_000})
    assert cost_lines([behind]) == [f"{DATA} (rank 1: 12,000 batches behind)"]


def test_a_rank_that_says_it_again_and_machines_that_are_gone_do_not_count() -> None:
    gone = WorkerCosts(machine="w-9", rank=1, vote="end", because="old")
    again = WorkerCosts(machine="w-1", rank=1, vote="front")
    view = view_of(FORMED, gone, AT_END, again)
    assert cost_lines(view.costs) == ["votes in front of the optimizer: nothing large is kept"]


def test_of_what_nobody_said_nothing_is_shown() -> None:
    assert cost_lines([]) == []
