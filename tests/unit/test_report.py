"""The story of one migration, from the facts of a real job."""

from __future__ import annotations

import json
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit import factories as make

from trainmover.errors import ConfigError
from trainmover.events import Envelope, decode
from trainmover.job.plan import Forecast
from trainmover_console.cli.daily.status import _status_table
from trainmover_console.report.page import render
from trainmover_console.report.report import Report, duration
from trainmover_console.view import JobView

RECORDED = Path(__file__).parent / "data" / "two-migrations.jsonl"


@pytest.fixture(scope="module")
def facts() -> list[Envelope]:
    """A real job: m-0001 a planned move of node-2, m-0002 after node-0 was killed."""
    lines = map(json.loads, RECORDED.read_text().splitlines())
    return [decode(each["subject"], each["headers"], each["body"].encode()) for each in lines]


class Outline(HTMLParser):
    """Checks that what opens closes, and finds what would be fetched."""

    VOID = frozenset({"meta", "line", "rect", "polyline", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_planned_move_is_told_in_order(facts: list[Envelope]) -> None:
    report = Report.of(facts, "m-0001", job="job")
    assert "node-2 -> " in report.headline
    assert report.headline.startswith("m-0001 committed: planned move")
    cost = report.cost
    assert cost.steps_redone == 0
    assert cost.pause_s is not None
    assert cost.pause_s == max(cost.pauses_s.values())
    assert list(cost.phases_s)[:2] == ["proposed", "approved"]
    assert cost.beside_s is not None
    assert cost.beside_s > cost.pause_s
    assert {"links", "state"} & set(cost.switch_s) or cost.switch_s


def test_a_recovery_says_why_the_machine_was_believed_dead(facts: list[Envelope]) -> None:
    report = Report.of(facts, "m-0002", job="job")
    assert report.incident is not None
    evidence = dict(report.evidence())
    assert "node-0" in evidence["finding"]
    assert evidence["confidence"].endswith("%")
    assert len(evidence) > 2
    assert report.cost.beside_s is None, "nobody trains meanwhile"
    assert report.as_data()["finding"]["machine"] == "node-0"
    assert report.as_data()["timeline"]


def test_who_decided_and_why_is_told() -> None:
    after = make.membership_of("node-0", "node-2", epoch=2)
    move = make.Move("m-1", slot=1, leaver="node-1", joiner="node-2", after=after)
    said = [make.said(move.proposed()), make.said(move.aborted("wrong one"), at_s=1)]
    report = Report.of(said, "m", job="j")
    assert report.decision == "asked for by policy, given up by planner"
    assert report.cost.pause_s is None
    page = render(report)
    assert "It did not come to a switch." in page
    assert "wrong one" in page


FORESEEN = Forecast(
    pause_s=0.02,
    pause_most_s=0.05,
    measured=4,
    lateness=0.2,
    horizon_s=3_600,
    gain_s=720,
)


@pytest.mark.parametrize(
    ("pause_s", "held", "words"), [(0.04, True, "; it was"), (0.06, False, "; it was not")]
)
def test_what_was_foreseen_is_beside_what_was_measured(
    pause_s: float, held: bool, words: str
) -> None:
    proposed = make.MOVE.proposed().model_copy(update={"forecast": FORESEEN})
    said = [
        *(make.said(one) for one in make.FORMED),
        make.said(proposed),
        make.said(make.MOVE.committed(), at_s=1),
        make.said(make.MOVE.resumed("node-0", 0, pause_s), at_s=2),
    ]
    report = Report.of(said, "m-0001", job="j")
    assert report.foreseen() == [
        (
            "expected",
            f"a pause of 0.02 s, within 0.05 s in nine of ten (of 4 earlier moves){words}",
        ),
        ("gain", "720 s saved within 3600 s, as the others wait for 20 % of each step"),
    ]
    assert report.as_data()["forecast_held"] is held
    assert report.as_data()["forecast"]["pause_most_s"] == 0.05
    assert "nine of ten" in render(report)


def test_who_is_asked_to_approve_a_move_is_told_what_it_costs() -> None:
    proposed = make.MOVE.proposed().model_copy(update={"forecast": FORESEEN})
    view = JobView("j")
    for fact in (*make.FORMED, proposed):
        view.apply(make.said(fact))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(_status_table(view, None))
    assert "  cost: a pause of 0.02 s, within 0.05 s in nine of ten" in capture.get()
    assert "  gain: 720 s saved within 3600 s" in capture.get()


def test_of_a_planner_that_foresaw_nothing_nothing_is_shown(facts: list[Envelope]) -> None:
    report = Report.of(facts, "m-0001", job="job")
    assert report.foreseen() == []
    assert report.as_data()["forecast_held"] is None


def test_the_page_needs_nothing_and_escapes_what_it_is_told(facts: list[Envelope]) -> None:
    for id in ("m-0001", "m-0002"):
        outline = Outline()
        outline.feed(render(Report.of(facts, id, job="<b>job</b>")))
        assert outline.open == []
        assert outline.fetched == []
        assert "<b>job</b>" in outline.text
        assert "Why it was believed" in outline.text
        assert "pause of rank" in outline.text


def test_an_id_may_be_its_beginning(facts: list[Envelope]) -> None:
    assert Report.of(facts, "m-0002", job="j").migration.id == "m-0002"
    with pytest.raises(ConfigError, match="beginning of 2"):
        Report.of(facts, "m-", job="j")
    with pytest.raises(ConfigError, match="migration ls"):
        Report.of(facts, "x", job="j")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0213, "21.3 ms"), (1.5, "1.50 s"), (timedelta(minutes=3, seconds=20).total_seconds(),
     "3 min 20 s")],
)  # fmt: skip
def test_durations_are_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words
