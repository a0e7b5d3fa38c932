"""Times of the week."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmover.policy.hours import window


def at(text: str) -> float:
    """Seconds since 1970 of a time in the week of Monday, 23 November 2026."""
    day, clock = text.split()
    number = 23 + ("mon", "tue", "wed", "thu", "fri", "sat", "sun").index(day)
    hour, minute = map(int, clock.split(":"))
    return datetime(2026, 11, number, hour, minute, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("08:00-18:00", ["mon 08:00", "sun 17:59"], ["mon 18:00", "tue 07:59"]),
        ("fri 22:00-06:00", ["fri 22:00", "sat 05:59"], ["fri 05:00", "sat 06:00", "sat 22:30"]),
        ("sun 22:00-06:00", ["sun 23:00", "mon 05:59"], ["mon 06:00"]),
        ("sat,sun", ["sat 00:00", "sun 23:59"], ["fri 23:59", "mon 00:00"]),
        ("fri-mon", ["fri 10:00", "mon 10:00"], ["tue 00:00", "thu 23:59"]),
        ("MON, wed 00:00-24:00", ["mon 23:59", "wed 12:00"], ["tue 12:00"]),
    ],
)
def test_what_is_in_it(text: str, inside: list[str], outside: list[str]) -> None:
    assert all(window(text).holds(at(one)) for one in inside)
    assert not any(window(text).holds(at(one)) for one in outside)


@pytest.mark.parametrize(
    "text",
    ["", "8-18", "08:00", "mon tue", "08:60-09:00", "24:01-25:00", "08:00-09:00 10:00-11:00"],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"no time|is no"):
        window(text)


@given(
    at_s=st.floats(0, 4e9),
    text=st.sampled_from(["08:00-18:00", "fri 22:00-06:00", "sat,sun", "mon-sun", "00:00-00:01"]),
)
def test_it_changes_when_it_says_and_not_before(at_s: float, text: str) -> None:
    one = window(text)
    turn_s = one.changes_s(at_s)
    assert turn_s > at_s
    assert one.holds(at_s) == one.holds((at_s + turn_s) / 2) == one.holds(turn_s - 1)
    if text not in ("mon-sun", "sat,sun"):  # one day's end is the next one's beginning
        assert one.holds(turn_s) != one.holds(at_s)
