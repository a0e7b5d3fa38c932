"""YAML without a YAML library."""

from __future__ import annotations

import pytest

from trainmover_console.cli.output import to_yaml


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"a": 1, "b": None, "c": True}, "a: 1\nb: null\nc: true\n"),
        ({"a": {"b": [1, {"c": "x: y"}]}}, 'a:\n  b:\n    - 1\n    - c: "x: y"\n'),
        ({"a": [], "b": {}}, "a: []\nb: {}\n"),
        ([{"a": 1, "b": [2]}], "- a: 1\n  b:\n    - 2\n"),
        ({"0": "no", "x y": "1"}, '"0": "no"\n"x y": "1"\n'),
        ([], "[]\n"),
        ("line\nbreak", '"line\\nbreak"\n'),
    ],
)
def test_to_yaml(data: object, text: str) -> None:
    assert to_yaml(data) == text
