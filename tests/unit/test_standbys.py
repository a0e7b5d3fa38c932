"""A standby that cannot get warm is seen, wherever somebody looks."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from tests.unit import factories as make

from trainmover.events import machine
from trainmover.job.topology import Frozen
from trainmover_console.cli.daily.status import _status_table
from trainmover_console.cli.services import supervise
from trainmover_console.doctor import machines
from trainmover_console.metrics.exporter import JobCollector
from trainmover_console.view import JobView
from trainmover_console.view.live import Watched
from trainmover_console.view.summary import summarise, worth_showing
from trainmover_console.view.terminal import not_ready, render
from trainmover_launcher.spec import ClusterSpec

MEMBERSHIP = make.membership_of("node-0", "node-1")
LINE = (
    "node-2 is not ready for slots 0, 1: AssertionError: odd at train.py:19, tried 3 times, "
    "next try in 3 s"
)


def failed(
    slot: int,
    *,
    attempts: int = 1,
    retry_in_s: float = 4.0,
    error: str = "AssertionError: odd",
    name: str = "node-2",
) -> machine.MachineWarmingFailed:
    return machine.MachineWarmingFailed(
        machine=name,
        generation=0,
        slot=slot,
        rank=slot,
        attempts=attempts,
        error=error,
        where="/home/ada/train.py:19",
        retry_in_s=retry_in_s,
    )


FORMED = [
    *(make.registered(f"node-{index}") for index in range(3)),
    make.migration.JobFormed(membership=MEMBERSHIP, standbys=("node-2",)),
]


def watched(*more: Frozen) -> Watched:
    seen = Watched("j")
    for index, payload in enumerate([*FORMED, *more]):
        seen.apply(make.said(payload, at_s=float(index)))
    return seen


def view_of(*more: Frozen) -> JobView:
    return watched(*more).view


BOTH = (failed(0), failed(1, attempts=3))  # said in second 4 and second 5
NOW = make.at(5.0)


def test_the_same_error_is_one_line_for_all_its_slots() -> None:
    assert list(not_ready(view_of(*BOTH), now=NOW)) == [LINE]


def test_other_errors_have_lines_of_their_own() -> None:
    view = view_of(failed(0), failed(1, error="its process was ended by SIGKILL"))
    assert len(list(not_ready(view, now=NOW))) == 2


@pytest.mark.parametrize(
    "event",
    [
        [make.ready("node-2", 0), make.ready("node-2", 1)],
        [make.registered("node-2", generation=1)],
        [machine.MachineLost(machine="node-2", reason="gone")],
        [machine.MachineQuarantined(machine="node-2", reason="slow")],
        [
            make.Move(
                id="m-1",
                slot=1,
                leaver="node-1",
                joiner="node-2",
                after=make.membership_of("node-0", "node-2", epoch=2),
            ).committed()
        ],
    ],
)
def test_it_is_forgotten_when_the_standby_is_ready_or_gone(event: list[Frozen]) -> None:
    view = JobView("j")
    for index, payload in enumerate([*FORMED, *BOTH, *event]):
        told = payload if isinstance(payload, make.Envelope) else make.said(payload, at_s=index)
        view.apply(told)
    assert list(not_ready(view, now=NOW)) == []
    assert view.machines["node-2"].failures == {}


def test_a_ready_standby_that_dies_is_not_ready() -> None:
    view = view_of(make.ready("node-2", 0), failed(0))
    assert view.machines["node-2"].ready_slots == set()


def test_status_says_it_to_people_and_to_programs() -> None:
    view = view_of(*BOTH)
    (standby,) = (one for one in view.as_data()["machines"] if one["machine"] == "node-2")
    assert standby["not_ready"] == [
        {
            "slots": [0, 1],
            "rank": 0,
            "error": "AssertionError: odd",
            "where": "/home/ada/train.py:19",
            "attempts": 3,
            "next_try": make.at(8.0).isoformat(),
        }
    ]
    assert "AssertionError: odd at train.py:19, tried 3 times" in text_of(
        _status_table(view, {"redundancy": ""})
    )


def test_watch_shows_it_and_tells_only_the_first_attempt() -> None:
    seen = watched(*BOTH)
    assert LINE in text_of(render(seen, now=NOW))
    assert [line.text for line in seen.lines if line.bad] == [
        "machine.warming_failed node-2 is not ready for slot 0: AssertionError: odd at "
        "train.py:19, next try in 4 s"
    ]
    assert not worth_showing(make.said(failed(0, attempts=2)))
    assert "next try in 4 s" in summarise(make.said(failed(0, attempts=2)))


def test_when_the_next_try_is_due_it_says_so() -> None:
    (line,) = not_ready(view_of(*BOTH), now=make.at(60))
    assert line.endswith("tried 3 times, tried again now")


def test_the_doctor_calls_it_a_problem() -> None:
    (found,) = machines.judge_standbys(view_of(*BOTH), now=NOW)
    assert (found.check, found.level, found.text) == ("standbys", "problem", LINE)
    assert "rank 0 on node-2" in found.cure


def test_a_metric_for_each_standby_and_slot() -> None:
    registry = CollectorRegistry()
    seen = watched(make.ready("node-2", 1), failed(0))
    registry.register(JobCollector(seen, clock=lambda: NOW))
    text = generate_latest(registry).decode()
    labels = 'machine="node-2",slot="{}",training_job="j"'
    name = "trainmover_standby_slot_ready"
    assert f"{name}{{{labels.format(0)}}} 0.0" in text
    assert f"{name}{{{labels.format(1)}}} 1.0" in text


def test_the_launcher_says_each_error_once(capsys: pytest.CaptureFixture[str]) -> None:
    spec = ClusterSpec(
        job="j", nnodes_min=2, nnodes_max=3, program=("train.py",), log_dir=Path("/logs")
    )
    known: set[tuple[str, str]] = set()
    for fact in (*BOTH, failed(0, attempts=2), failed(0, attempts=3, error="ValueError: new")):
        supervise._warn_once(fact, spec, known)
    told = capsys.readouterr().err
    assert told.count("AssertionError: odd at train.py:19") == 1
    assert told.count("ValueError: new at train.py:19") == 1
    assert "/logs/rank0-node-2-*.log" in told


DIFFERS = machine.MachineDataDiffers(
    machine="node-2",
    slot=1,
    rank=1,
    batch=17,
    loader="DataLoader over Records",
    where="/home/ada/train.py:30",
    what="it is another one than that of the rank",
)


def test_a_standby_with_other_data_is_seen_wherever_somebody_looks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = watched(make.ready("node-2", 1), DIFFERS)
    (standby,) = seen.view.standbys
    assert standby.ready_slots == {1}, "it stays ready"
    assert "other data than rank 1 at train.py:30" in text_of(
        _status_table(seen.view, {"redundancy": ""})
    )
    (found,) = machines.judge_standbys(seen.view, now=NOW)
    assert (found.level, "other data than rank 1" in found.text) == ("warning", True)
    assert seen.lines[-1].bad
    assert "batch 17 of DataLoader over Records" in summarise(make.said(DIFFERS, at_s=0))
    again = make.registered("node-2", generation=1)
    assert not watched(DIFFERS, again).view.standbys[0].note

    spec = ClusterSpec(
        job="j", nnodes_min=2, nnodes_max=3, program=("train.py",), log_dir=Path("/logs")
    )
    known: set[tuple[str, str]] = set()
    for fact in (DIFFERS, DIFFERS.model_copy(update={"rank": 0})):
        supervise._warn_once(fact, spec, known)
    told = capsys.readouterr().err
    assert told.count("would be given other data than rank 1: batch 17") == 1


def text_of(page: object) -> str:
    console = Console(width=300)
    with console.capture() as said:
        console.print(page)
    return said.get()
