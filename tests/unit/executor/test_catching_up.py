"""A joiner whose data can only be read in order, while the leaver trains on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainmover_executor.moves.joiner import Joiner

OPEN = [[0, 5]]


class Leaver:
    """Shows where it is; takes ``pace`` steps while the joiner draws one batch."""

    def __init__(self, *, begins: int, pace: float) -> None:
        self.at, self.pace, self.drawn = float(begins), pace, 0
        self.preloads: list[int] = []
        self.open = OPEN

    def seen(self) -> dict[str, Any]:
        place = {"committed": int(self.at), "open": self.open}
        return {"place": place, "position": {"feeds": [int(self.at)]}}

    def preload(self, feeds: list[int], *, budget_s: float = float("inf")) -> None:
        del budget_s
        self.preloads.append(feeds[0])
        self.at += (feeds[0] - self.drawn) * self.pace
        self.drawn = feeds[0]


def catch_up(leaver: Leaver) -> None:
    joiner = object.__new__(Joiner)
    joiner._runtime = SimpleNamespace(places=leaver)  # type: ignore[assignment]
    told = {"place": {"committed": 1_000, "open": OPEN}, "feeds": [1_000]}
    joiner._catch_up(SimpleNamespace(told=told), leaver)  # type: ignore[arg-type]


def test_it_arrives_close_behind_the_leaver():
    leaver = Leaver(begins=1_000, pace=0.5)
    catch_up(leaver)
    assert leaver.at - leaver.drawn <= 4
    assert leaver.preloads[:3] == [1_000, 1_500, 1_750]


@pytest.mark.parametrize("pace", [1.0, 2.0])
def test_it_gives_up_where_it_comes_no_nearer(pace):
    leaver = Leaver(begins=1_000, pace=pace)
    catch_up(leaver)
    assert len(leaver.preloads) == 2


def test_it_stays_in_the_call_that_it_was_told_of():
    leaver = Leaver(begins=1_000, pace=0.5)
    leaver.open = [[1, 0]]
    catch_up(leaver)
    assert leaver.preloads == [1_000]
