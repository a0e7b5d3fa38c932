"""Values of the standard library that a program keeps in its variables, there and back."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch

from trainmover_executor.program.values.kinds.standard import read, written
from trainmover_executor.program.values.plain import is_plain
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree

VALUES = [
    Decimal("1.10"),
    Decimal("-Infinity"),
    Fraction(-3, 7),
    dt.datetime(2026, 11, 24, 1, 2, 3, 4, tzinfo=dt.UTC),
    dt.datetime(2026, 11, 24),
    dt.date(2026, 2, 28),
    dt.time(23, 59, 1, 7),
    dt.timedelta(days=-1, seconds=5, microseconds=9),
    uuid.UUID(int=2**100),
    range(9, -3, -2),
    torch.Size([]),
    torch.Size([3, 0, 7]),
    {dt.date(2026, 1, 1): Decimal("0.5"), Decimal(2): [Fraction(1, 3)]},
]


def there_and_back(value: Any, like: Any = None) -> Any:
    assert is_plain(value)
    return restored(unpack_tree(pack_tree({"value": portable(value)}))["value"], like)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_equal(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("make", [itertools.count, lambda: itertools.count(5, -2)])
def test_a_count_goes_on_where_it_stands(make: Any) -> None:
    count, other = make(), make()
    for _ in range(3):
        next(count), next(other)
    back = there_and_back(count, like=itertools.count(100))
    assert [next(back) for _ in range(3)] == [next(other) for _ in range(3)]


@pytest.mark.parametrize(
    "value", [Decimal("NaN"), itertools.count(Fraction(1, 2)), iter([1]), itertools.cycle([1])]
)
def test_what_would_not_come_back_equal_is_not_written(value: Any) -> None:
    assert written(value) is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [("decimal", "x"), ("fraction", "1/0"), ("count", "("), ("range", "1 2 0")],
)
def test_a_text_that_is_no_value_is_an_error(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read(kind, text)
