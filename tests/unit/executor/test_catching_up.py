"""A joiner whose data can only be read in order, while the leaver trains on."""

from __future__ import annotations

from typing import Any

import pytest

from trainmover_executor.feed.catching_up import catch_up, keep_up

OPEN = [[0, 5]]
TOLD = {"place": {"committed": 1_000, "open": OPEN}, "feeds": [1_000]}


class Leaver:
    """Shows where it is; takes ``pace`` steps while the joiner draws one batch."""

    def __init__(self, *, pace: float) -> None:
        self.at, self.pace, self.drawn = 1_000.0, pace, 0
        self.open = OPEN
        self.asked: list[int] = []

    def seen(self) -> dict[str, Any]:
        place = {"committed": int(self.at), "open": self.open}
        return {"place": place, "position": {"feeds": [int(self.at)]}}

    def approach(self, feeds: Any) -> bool:
        raise AssertionError("it is on its way")

    def preload(self, feeds: Any, *, budget_s: float = 0.0) -> bool:
        """The joiner draws, a hundred batches at a time."""
        assert 0 < budget_s < 1, "the link has to be looked after"
        if self.asked[-1:] != feeds:
            self.asked.append(feeds[0])
        drawn = min(100, feeds[0] - self.drawn)
        self.drawn += drawn
        self.at += drawn * self.pace
        return self.drawn == feeds[0]


def go_on() -> None:
    """Somebody needs it."""


def test_it_arrives_close_behind_the_leaver():
    leaver = Leaver(pace=0.5)
    catch_up(leaver, TOLD, leaver.seen, go_on=go_on)
    assert leaver.at - leaver.drawn <= 4
    assert leaver.asked[:3] == [1_000, 1_500, 1_750]


@pytest.mark.parametrize("pace", [1.0, 2.0])
def test_it_gives_up_where_it_comes_no_nearer(pace):
    leaver = Leaver(pace=pace)
    catch_up(leaver, TOLD, leaver.seen, go_on=go_on)
    assert len(leaver.asked) == 2


def test_it_stays_in_the_call_that_it_was_told_of():
    leaver = Leaver(pace=0.5)
    leaver.open = [[1, 0]]
    catch_up(leaver, TOLD, leaver.seen, go_on=go_on)
    assert leaver.asked == [1_000]


def test_it_stops_when_nobody_needs_it():
    leaver = Leaver(pace=0.5)

    def withdrawn() -> None:
        if leaver.drawn >= 300:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        catch_up(leaver, TOLD, leaver.seen, go_on=withdrawn)
    assert leaver.drawn == 300


def test_it_draws_a_little_while_the_leaver_sends():
    leaver = Leaver(pace=0.5)
    keep_up(leaver, TOLD, leaver.seen)
    assert leaver.drawn == 0, "it was told of that place"
    leaver.at += 500
    keep_up(leaver, TOLD, leaver.seen)
    assert leaver.drawn == 100
