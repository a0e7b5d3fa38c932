"""The page on frameworks shows the lines of the examples that differ from the frameworks' own."""

from __future__ import annotations

import pytest
from tests.docs.pages import ROOT, fences

MOST = {"train_accelerate": 5, "train_lightning": 5, "train_titan": 14, "train_transformers": 2}
"""Lines; the loop of a trainer like torchtitan's is the program's own, and has no adapter."""


@pytest.mark.parametrize("example", MOST)
def test_an_example_changes_few_lines(example: str) -> None:
    lines = (ROOT / f"examples/{example}.py").read_text().splitlines()
    marked = [line.partition("#")[0].strip() for line in lines if "(*)" in line and "#" in line]
    page = ROOT / "docs/howto/frameworks.md"
    diffs = [text for language, text in fences(page) if language == "diff"]
    shown = [
        [line[1:].strip() for line in diff.splitlines() if line.startswith("+")] for diff in diffs
    ]
    assert marked in shown
    assert 0 < len(marked) <= MOST[example]
