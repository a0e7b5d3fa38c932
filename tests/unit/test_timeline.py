"""Bars from facts, and the trace file that Perfetto opens, against a recorded migration."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit import factories as make

from trainmover.events import Envelope, decode, executor
from trainmover.tracing.timeline import Phases, bars_of, timeline
from trainmover_console.report.chrome_trace import chrome_trace

RECORDED = Path(__file__).parent / "data" / "two-migrations.jsonl"


@pytest.fixture(scope="module")
def facts() -> list[Envelope]:
    """A real job: m-0001 a planned move of node-2, m-0002 after node-0 was killed."""
    lines = map(json.loads, RECORDED.read_text().splitlines())
    return [decode(each["subject"], each["headers"], each["body"].encode()) for each in lines]


class TestBars:
    def test_the_parts_of_phase_2_follow_one_another(self):
        switched = executor.PlanSwitched(
            migration="m",
            machine="w",
            rank=3,
            epoch=2,
            step=7,
            phases_s={"links": 0.25, "state": 0.5},
        )
        links, state, moment = bars_of(make.said(switched, at_s=10))
        assert (links.name, links.seconds, state.name) == ("phase 2: links", 0.25, "phase 2: state")
        assert links.end == state.start
        assert state.end == moment.end == make.START + timedelta(seconds=10)
        assert {bar.lane for bar in (links, state, moment)} == {"rank 3"}

    def test_a_pause_ends_where_the_first_step_begins(self):
        move = make.Move(
            "m", slot=1, leaver="a", joiner="b", after=make.membership_of("x", "b", epoch=2)
        )
        pause, step = bars_of(make.said(move.resumed("x", 0, 0.125), at_s=10))
        assert (pause.name, pause.seconds) == ("pause", 0.125)
        assert (step.name, step.seconds) == ("first step", 0.25)
        assert pause.end == step.start

    def test_a_clock_that_ran_backwards_makes_no_negative_bar(self):
        move = make.Move(
            "m", slot=1, leaver="a", joiner="b", after=make.membership_of("x", "b", epoch=2)
        )
        phases = Phases()
        phases.take(make.said(move.proposed(), at_s=10))
        (bar,) = phases.take(make.said(move.preparing(), at_s=9))
        assert (bar.name, bar.seconds) == ("proposed", 0)

    def test_two_migrations_at_once_keep_apart(self):
        after = make.membership_of("x", "b", epoch=2)
        one = make.Move("one", slot=1, leaver="a", joiner="b", after=after)
        two = make.Move("two", slot=0, leaver="x", joiner="c", after=after)
        phases = Phases()
        for at_s, fact in enumerate((one.proposed(), two.proposed(), one.preparing())):
            bars = phases.take(make.said(fact, at_s=at_s))
        assert [(bar.name, bar.seconds, bar.details["migration"]) for bar in bars] == [
            ("proposed", 2, "one")
        ]
        ended = phases.take(make.said(two.aborted("r"), at_s=5))
        assert [(bar.name, bar.seconds) for bar in ended] == [("proposed", 4), ("migration", 4)]
        assert ended[1].details["outcome"] == "aborted"


class TestTimeline:
    def test_a_planned_move_from_proposal_to_the_steps_after(self, facts):
        bars = timeline(facts, "m-0001")
        planner = [bar.name for bar in bars if bar.lane == "phases"]
        assert planner == ["proposed", "approved", "preparing", "ready", "switching"]
        whole = next(bar for bar in bars if bar.name == "migration")
        assert whole.details["outcome"] == "committed"
        names = {(bar.who, bar.name) for bar in bars}
        for rank_of in ("node-0", "node-1", "node-3", "node-4"):
            assert (rank_of, "phase 1") in names
            assert (rank_of, "committed") in names
        assert ("node-4", "shadow iterations") in names  # what made the joiner warm
        assert ("node-2", "phase 2: state") in names  # the leaver hands over
        assert sum(bar.name == "pause" for bar in bars) == 3  # the stayers
        assert not any(bar.who == "detector" for bar in bars)

    def test_a_recovery_begins_with_what_was_seen(self, facts):
        bars = timeline(facts, "m-0002")
        names = [bar.name for bar in bars if bar.name != "shadow iterations"]
        assert names.index("step broken") < names.index("incident opened")
        assert names.index("incident opened") < names.index("proposed")
        assert {"link lost", "machine lost", "incident closed", "phase 2: join"} <= set(names)

    def test_they_are_in_order_and_an_unknown_one_is_empty(self, facts):
        bars = timeline(facts, "m-0002")
        assert all(one.start <= two.start for one, two in pairwise(bars))
        assert timeline(facts, "m-9999") == []


class TestChromeTrace:
    """What the Trace Event format asks for, so that Perfetto's importer takes every event."""

    @pytest.fixture
    def document(self, facts) -> dict[str, Any]:
        roles = {"node-1": "stayer", "node-5": "joiner"}
        made = chrome_trace(timeline(facts, "m-0002"), roles=roles, migration="m-0002")
        return json.loads(json.dumps(made))  # it is JSON

    def test_every_event_is_whole(self, document):
        for event in document["traceEvents"]:
            assert isinstance(event["name"], str)
            assert isinstance(event["pid"], int)
            assert event["ph"] in {"X", "i", "M"}
            if event["ph"] == "M":
                continue
            assert event["ts"] >= 0
            assert isinstance(event["tid"], int)
            if event["ph"] == "X":
                assert event["dur"] > 0
            else:
                assert event["s"] == "t"

    def test_processes_and_threads_have_names(self, document):
        events = document["traceEvents"]
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        assert list(names.values())[:2] == ["detector", "planner"]
        assert {"node-1 (stayer)", "node-5 (joiner)"} <= set(names.values())
        threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
        drawn = {(e["pid"], e["tid"]) for e in events if e["ph"] != "M"}
        assert drawn == threads

    def test_bars_of_one_thread_do_not_cross(self, document):
        """Perfetto nests bars of a thread and drops the ones that overlap without nesting."""
        bars: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for e in document["traceEvents"]:
            if e["ph"] == "X" and e["name"] != "shadow iterations":
                bars.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
        for spans in bars.values():
            for one, two in pairwise(sorted(spans)):
                assert two[0] >= one[1] - 1 or two[1] <= one[1] + 1, (one, two)

    def test_an_empty_timeline_is_a_valid_file(self):
        assert chrome_trace([])["traceEvents"] == []
