"""No link leads nowhere, no page is out of reach, and pages read as they are meant to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, anchors, links, named, prose

PENDING = {"benchmarks/results/detection.md"}
"""Figures that are still being measured."""


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            assert link.startswith("https://"), link
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert ROOT in target.parents, f"{named(page)}: {link} leaves the repository"
        if str(target.relative_to(ROOT)) in PENDING:
            continue
        assert target.exists(), f"{named(page)}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{named(page)}: {link}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file():
                todo.append(target)
    lost = {named(page) for page in PAGES if page.is_relative_to(ROOT / "docs")} - {
        named(page) for page in seen
    }
    # ADRs are reached from the pages that rest on them, and by their folder.
    assert {name for name in lost if not name.startswith("docs/adr/")} == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_has_one_title_and_closed_code_blocks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^```", text, re.MULTILINE)) % 2 == 0
    assert len(re.findall(r"^# ", prose(page), re.MULTILINE)) == 1
    assert text.endswith("\n")
