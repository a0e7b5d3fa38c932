"""The demo's report in a real browser, at the widths that people have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.demo.test_report import outcome

from trainmover_console.demo.report import render

pytestmark = pytest.mark.timeout(120)

CAUSE = (
    "node-1: rank 1 comes late: its peers spend 17% of each step more in collectives (31 of 182 "
    "ms) for 14 steps; it spends it on compute"
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [800, 1300])
def test_migrations_can_be_read(browser: Any, scheme: str, width: int) -> None:
    told = outcome()
    (move,) = told.moves
    moves = told.run.view.migrations
    for number in (1, 2):
        moves[f"m-{number}"] = replace(move, id=f"m-{number}", cause=CAUSE)
    view = {"width": width, "height": 800}
    page = browser.new_context(color_scheme=scheme, viewport=view).new_page()
    page.set_content(render(told))
    hidden = "node => node.scrollWidth - node.clientWidth"
    for part in page.locator(".wide").all():
        assert part.evaluate(hidden) <= 0
    (causes,) = page.locator("table.beside tr", has_text="cause").all()
    height = "node => node.getBoundingClientRect().height"
    assert causes.evaluate(height) < 150, "a word to a line"
    drawn = "nodes => nodes.map(node => getComputedStyle(node).fill)"
    assert "rgb(0, 0, 0)" not in page.locator("svg rect").evaluate_all(drawn)
    page.context.close()
