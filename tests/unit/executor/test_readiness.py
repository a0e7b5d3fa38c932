"""When a standby says that it is ready: where the job is in the data, so that a crash costs little.

The runtime is a double that tells places from a list; data is one that takes its time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmover_executor.moves.course_packing import PACKING
from trainmover_executor.moves.joining.waiting import Waiting
from trainmover_executor.position.course import Course, EndCall, Stay
from trainmover_executor.position.ended import EndedCall, EndedCalls
from trainmover_executor.position.position import Place
from trainmover_executor.position.results import Results, Returned
from trainmover_executor.worker.to_standbys.places import Places

NONE = [EndedCalls(), EndedCalls()]
HERE = Place(open=[[1, 5]], ended=NONE, committed=5, between=0)
OVER = Place(open=[], ended=[EndedCalls(EndedCall(5, 5, False, {}))], committed=5, between=0)
EVALUATES = Place(open=[[1, 3]], ended=NONE, committed=3, between=1)
SCORE = Returned(1, "score")
RETURNED = Results()
RETURNED.add(SCORE, packing=PACKING)
PASSED = Place([[1, 3]], NONE, committed=3, between=0, results=[1], returned=RETURNED)


class Job:
    """The places that a standby hears of, one each time it waits without having more to do."""

    def __init__(self, *heard: Place | None) -> None:
        self.places = Places()
        self.heard = list(heard)
        self.waited: list[float | None] = []

    def wait_for_news(self, *, timeout_s: float | None) -> None:
        self.waited.append(timeout_s)
        if timeout_s == 0.0:
            return
        place = self.heard.pop(0)
        if place is not None:
            self.places.see({"place": place.to_tree(), "position": {"feeds": []}})


class Reads:
    """Data that takes so many looks to come to where the job is."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def approach(self, feeds: Any) -> bool:
        del feeds
        self.looks -= 1
        return self.looks <= 0

    def compare(self, seen: Any) -> None:
        """It is where the job is."""
        assert seen
        assert self.looks <= 0

    def stop_comparing(self) -> None:
        """A plan has come."""


class Standby:
    """A program in its first call of ``session.steps``, and what was left at ``ready``."""

    def __init__(self, job: Job, data: Reads) -> None:
        self.waiting = Waiting(cast("Any", job))
        self.job, self.data = job, data
        self.course = Course(PACKING)
        level = self.course.begin()
        for _ in range(3):
            self.course.draw(level)
        self.ready: list[int] = []

    def way(self, *, between: bool = False) -> Any:
        return self.waiting.until_needed(
            self.course,
            between=between,
            data=cast("Any", self.data),
            ready=lambda: self.ready.append(self.data.looks),
        )


def test_it_is_ready_once_its_data_is_where_the_job_is() -> None:
    standby = Standby(Job(HERE, OVER), Reads(looks=4))
    assert isinstance(standby.way(), EndCall)
    assert standby.ready == [0], "and not while it read"


def test_it_is_ready_where_nobody_says_where_the_job_is() -> None:
    """A rank that died, or a job that has not taken its first step: it does not wait for long."""
    job = Job(None, OVER)
    standby = Standby(job, Reads(looks=1))
    standby.way()
    assert standby.ready == [1]
    assert job.waited == [1.0, None]


def test_it_is_ready_in_the_end_where_reading_never_gets_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = iter(float(second) for second in range(1_000))
    clock = SimpleNamespace(monotonic=lambda: next(now_s))
    monkeypatch.setattr("trainmover_executor.moves.joining.waiting.time", clock)
    standby = Standby(Job(HERE, OVER), Reads(looks=50))
    standby.way()
    assert 40 < standby.ready[0] < 50, "after some looks of a second each"


def test_it_waits_at_work_between_steps_that_the_job_has_not_passed() -> None:
    job = Job(EVALUATES, PASSED)
    standby = Standby(job, Reads(looks=1))
    assert standby.way(between=True) == Stay(SCORE)
    assert not job.heard


def test_it_passes_what_it_knows_that_the_job_has_passed_without_waiting_for_another_place() -> (
    None
):
    """There may be thousands of calls behind one another, and a minute between two places."""
    job = Job(PASSED)
    standby = Standby(job, Reads(looks=1))
    assert standby.way(between=True) == Stay(SCORE)
    assert standby.way(between=True) == Stay(SCORE)
    assert job.waited == [1.0, 0.0]
