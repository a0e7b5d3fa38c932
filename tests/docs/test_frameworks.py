"""The page on frameworks shows the lines of the example that differ from the framework's own."""

from __future__ import annotations

from tests.docs.pages import ROOT, fences

MOST = 5


def test_the_example_changes_at_most_five_lines() -> None:
    example = (ROOT / "examples/train_accelerate.py").read_text().splitlines()
    marked = [line.partition("#")[0].strip() for line in example if "(*)" in line and "#" in line]
    page = ROOT / "docs/howto/frameworks.md"
    (diff,) = [text for language, text in fences(page) if language == "diff"]
    added = [line[1:].strip() for line in diff.splitlines() if line.startswith("+")]
    assert added == marked
    assert 0 < len(added) <= MOST
