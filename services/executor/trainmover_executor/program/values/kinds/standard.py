"""Small values of the standard library as text: decimals, dates, ranges, counts, shapes.

All but a count never change, so one that is read is as good as the one that was written. A count
(``itertools.count``) is read anew where it stands.
"""

from __future__ import annotations

import ast
import datetime as dt
import decimal
import fractions
import itertools
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

__all__ = ["STANDARD", "is_kind", "read", "written"]


class _Form(NamedTuple):
    """How values of one class are written and read."""

    kind: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def _write_range(value: range) -> str:
    return f"{value.start} {value.stop} {value.step}"


def _write_period(value: dt.timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _read_period(text: str) -> dt.timedelta:
    days, seconds, microseconds = _numbers(text)
    return dt.timedelta(days, seconds, microseconds)


def _write_count(value: Any) -> str:
    return repr(value).removeprefix("count")


def _read_count(text: str) -> Any:
    given = ast.literal_eval(text)
    return itertools.count(*given) if isinstance(given, tuple) else itertools.count(given)


STANDARD: Final[dict[type, _Form]] = {
    decimal.Decimal: _Form("decimal", str, decimal.Decimal),
    fractions.Fraction: _Form("fraction", str, fractions.Fraction),
    dt.datetime: _Form("datetime", str, dt.datetime.fromisoformat),
    dt.date: _Form("date", str, dt.date.fromisoformat),
    dt.time: _Form("time", str, dt.time.fromisoformat),
    dt.timedelta: _Form("period", _write_period, _read_period),
    uuid.UUID: _Form("uuid", str, uuid.UUID),
    range: _Form("range", _write_range, lambda text: range(*_numbers(text))),
    torch.Size: _Form(
        "shape", lambda value: " ".join(map(str, value)), lambda text: torch.Size(_numbers(text))
    ),
    itertools.count: _Form("count", _write_count, _read_count),
}
"""By class; no other class counts, subclasses included."""

_READ: Final = {form.kind: form.read for form in STANDARD.values()}


def written(value: Any) -> str | None:
    """``kind text`` of a value; None for one of another class, or that would not be read equal."""
    form = STANDARD.get(type(value))
    if form is None:
        return None
    try:
        text = form.write(value)
        again = form.read(text)
        exact = repr(again) == repr(value) if form.kind == "count" else again == value
    except (ValueError, ArithmeticError, SyntaxError):  # a count of objects, a number that is none
        return None
    return f"{form.kind} {text}" if exact else None


def is_kind(name: str) -> bool:
    """Whether ``written`` writes values of such a kind."""
    return name in _READ


def read(kind: str, text: str) -> Any:
    """The value that ``written`` wrote.

    Raises:
        ValueError: The text is none of such a value.
    """
    try:
        return _READ[kind](text)
    except (ArithmeticError, SyntaxError, TypeError) as error:
        raise ValueError(f"{text!r} is no {kind}") from error
