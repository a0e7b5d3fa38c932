"""The page on frameworks shows the lines of the example that differ from the framework's own."""

from __future__ import annotations

import pytest
from tests.docs.pages import ROOT, fences

MOST = 5


@pytest.mark.parametrize("example", ["train_accelerate", "train_lightning"])
def test_the_example_changes_at_most_five_lines(example: str) -> None:
    lines = (ROOT / f"examples/{example}.py").read_text().splitlines()
    marked = [line.partition("#")[0].strip() for line in lines if "(*)" in line and "#" in line]
    page = ROOT / "docs/howto/frameworks.md"
    diffs = [text.splitlines() for language, text in fences(page) if language == "diff"]
    added = [[line[1:].strip() for line in diff if line.startswith("+")] for diff in diffs]
    assert marked in added
    assert 0 < len(marked) <= MOST
