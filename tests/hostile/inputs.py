"""What an attacker would put into a message: bytes, and valid messages with something swapped."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import strategies as st

__all__ = ["EXTREMES", "bytes_like", "documents_like", "values"]

EXTREMES: Final[tuple[Any, ...]] = (
    *(None, True, False, "", [], {}, 0, -1, 1, 2**31, 2**32 - 1, 2**63, 2**64, -(2**63), 10**400),
    *(0.5, 1e308, -1e308, float("nan"), float("inf"), "NaN", "x" * 5000, "\0", "\ud800", "é" * 70),
    *("../../etc/passwd", "a.b", "*", ">", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z"),
    *([[]] * 3, [0] * 5000, {"": ""}, {"a": {"a": {"a": {}}}}, [None], {"0": []}, ["x"]),
)


def values() -> st.SearchStrategy[Any]:
    """Anything that JSON can hold, and some that it cannot."""
    plain = st.one_of(st.sampled_from(EXTREMES), st.integers(), st.text(max_size=8), st.floats())
    return st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=4,
    )


def _places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(document, dict):
        for key, value in document.items():
            found += _places(value, (*path, key))
    elif isinstance(document, list):
        for at, value in enumerate(document[:8]):
            found += _places(value, (*path, at))
    return found


def _swapped(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    if isinstance(document, dict):
        return {
            key: _swapped(each, path[1:], value) if key == path[0] else each
            for key, each in document.items()
        }
    return [
        _swapped(each, path[1:], value) if at == path[0] else each
        for at, each in enumerate(document)
    ]


@st.composite
def documents_like(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one to three of its values swapped, or taken out."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(_places(document)))
        document = _swapped(document, path, draw(values()))
    return document


@st.composite
def bytes_like(draw: st.DrawFn, sample: bytes) -> bytes:
    """Bytes: any, a valid message cut, repeated or flipped, or its JSON with values swapped."""
    way = draw(st.sampled_from(["any", "cut", "flip", "insert", "twice", "json", "json", "json"]))
    if way == "any":
        return draw(st.binary(max_size=200))
    if way == "json":
        return draw(_swapped_json(sample))
    at = draw(st.integers(0, max(0, len(sample) - 1)))
    return {
        "cut": lambda: sample[:at],
        "twice": lambda: sample * draw(st.integers(2, 4)),
        "flip": lambda: sample[:at] + bytes([draw(st.integers(0, 255))]) + sample[at + 1 :],
        "insert": lambda: sample[:at] + draw(st.binary(min_size=1, max_size=64)) + sample[at:],
    }[way]()


@st.composite
def _swapped_json(draw: st.DrawFn, sample: bytes) -> bytes:
    head, separator, body = sample.partition(b"\n")
    try:
        document = json.loads(head)
    except ValueError:
        return draw(st.binary(max_size=len(sample) + 8))
    text = json.dumps(draw(documents_like(document)))
    return text.encode(errors="surrogatepass") + separator + body
