"""The report: whole, self-contained, and honest about a failed verdict."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.unit import factories as make

from trainmover.events.migration import JobFormed
from trainmover.telemetry.lateness import LatenessTable
from trainmover_console.demo.compare import compare
from trainmover_console.demo.metrics import RunMetrics, StepLine
from trainmover_console.demo.play import DemoSpec, Outcome, RunState
from trainmover_console.demo.report import render
from trainmover_console.report.charts import Mark, Series, heat_map, line_chart, timeline
from trainmover_console.report.style import STYLE
from trainmover_console.view import JobView

STEPS = 60
T0 = make.START.timestamp()


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def metrics(joiner: str, *, odd: bool = False) -> RunMetrics:
    steps = {}
    for rank in range(2):
        lines = []
        for step in range(STEPS):
            loss = 5.0 / (step + 1) + (0.5 if odd and step == 50 and rank == 1 else 0)
            machine = joiner if rank == 1 and step >= 39 else f"node-{rank}"
            late = 0.5 if step >= 39 else 0.0
            lines.append(StepLine(step, T0 + step + late, loss, loss.hex(), 0, machine))
        steps[rank] = tuple(lines)
    return RunMetrics(steps=steps, digests={0: "d", 1: "d"}, damaged={})


def outcome(*, odd: bool = False) -> Outcome:
    view = JobView("j")
    move = make.Move(
        "m-1",
        slot=1,
        leaver="node-1",
        joiner="node-2",
        after=make.membership_of("node-0", "node-2", epoch=2),
    )
    formed = JobFormed(membership=make.membership_of("node-0", "node-1"), standbys=("node-2",))
    facts = (formed, move.proposed(), move.preparing(), move.committed())
    for number, fact in enumerate(facts):
        view.apply(make.said(fact, at_s=37 + number, trace=make.TRACE))
    view.apply(make.said(move.resumed("node-0", 0, 0.45), at_s=41))
    table = LatenessTable(2)
    run = RunState("disturbed run", STEPS, view, table, launched_s=T0 - 3)
    run.tell("<script>alert(1)</script> & more")
    reference = RunState("undisturbed", STEPS, JobView("j"), table, launched_s=T0 - 4)
    ours, theirs = metrics("node-2", odd=odd), metrics("node-1")
    comparison = compare(ours, theirs, ranks=2, steps=STEPS)
    return Outcome(
        spec=DemoSpec(
            job="j",
            steps=STEPS,
            seed=1,
            nnodes_min=2,
            nnodes_max=3,
            folder=Path(),
            limit_s=1.0,
            environment={},
        ),
        run=run,
        reference=reference,
        run_metrics=ours,
        reference_metrics=theirs,
        comparison=comparison,
        problems=() if comparison.equal else ("the runs part",),
        restart_s=4.0,
    )


def test_the_page_is_whole_and_needs_nothing_from_anywhere() -> None:
    page = render(outcome())
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.tags.count("svg") >= 3
    assert not {"script", "link", "img", "iframe"} & set(parser.tags)
    assert not re.search(r"https?://|url\(|@import", page)
    assert "prefers-color-scheme: dark" in page
    assert "<script>" not in page


def test_each_shape_has_a_colour() -> None:
    page = render(outcome())
    drawn = {
        name for names in re.findall(r'<rect class="([\w -]+)"', page) for name in names.split()
    }
    assert {"computes", "hurt", "phase", "pause"} <= drawn
    assert {name for name in drawn if f"svg .{name}" not in STYLE} == set()


def test_the_page_tells_the_verdict_and_the_pause() -> None:
    page = render(outcome())
    assert "TrainMover demo: pass" in page
    assert "0.450 s" in page
    assert "They are the same to the last bit" in page
    failed = render(outcome(odd=True))
    assert "TrainMover demo: fail" in failed
    assert "They part at step 50, rank 1" in failed


def test_a_migration_is_a_column_with_a_line_for_each_phase() -> None:
    page = render(outcome())
    table = page[page.index('<table class="beside">') :]
    table = table[: table.index("</table>")]
    assert table.count("<tr>") == table.count("<td>") == 9
    assert f"<td><code>{'ab' * 16}</code></td>" in table
    (phases,) = re.findall(r"<th>phases</th><td>(.*?)</td>", table)
    assert len(re.findall(r"<div>[\w ]+ \d+\.\d{3} s</div>", phases)) == phases.count("<div>") >= 2


def test_the_verdict_as_json() -> None:
    data = json.loads(json.dumps(outcome().as_data()))
    assert data["verdict"] == "pass"
    assert data["bitwise_equal"] is True
    (move,) = data["migrations"]
    assert move["pause_s"] == 0.45
    assert move["gap_s"] == pytest.approx(1.5)
    assert (move["slot"], move["leaver"], move["joiner"]) == (1, "node-1", "node-2")
    assert move["trace_id"] == "ab" * 16
    assert data["median_step_s"] == 1.0
    assert outcome(odd=True).as_data()["verdict"] == "fail"


def test_charts_without_data_say_so() -> None:
    assert "No data" in line_chart([Series("x", [], "run")], x_label="step")
    assert "No telemetry" in heat_map({}, x_label="step", unit="s")
    assert "No data" in timeline([], x_label="s")


def test_a_curve_that_never_changes_and_a_single_point_can_be_drawn() -> None:
    flat = Series("flat", [(0.0, 1.0), (1.0, 1.0)], "run")
    one = Series("one", [(0.0, 1.0)], "run")
    for series in (flat, one):
        assert "<polyline" in line_chart([series], x_label="step", marks=[Mark(0.0, "a")])


def test_a_heat_map_of_many_steps_is_binned() -> None:
    rows = {"rank 0": [(float(step), 0.1) for step in range(5000)]}
    assert heat_map(rows, x_label="step", unit="s").count("<rect") <= 240
