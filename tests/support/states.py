"""``python -m tests.support.states``: draw docs/concepts/states.md from the cores' own tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trainmover.protocol import mermaid
from trainmover_executor.agent.core.chart import BAY, MACHINE
from trainmover_executor.decisions.chart import RANK
from trainmover_planner.state.chart import JOB

PAGE: Final = Path(__file__).parents[2] / "docs" / "concepts" / "states.md"

_HEAD: Final = """\
# States

Drawn from the tables that the cores check each transition against.
`python -m tests.support.states` draws it anew.
What is not an arrow here is refused, by name.
"""

_PARTS: Final = (
    (
        "A planned move",
        "The phases are the facts `migration.<phase>`. An abort that comes after the ranks voted "
        "loses: the ranks decide, so `aborted` can still become `switching`.",
        mermaid("planned"),
    ),
    (
        "A recovery",
        "Once its plan is out a broken step cannot be as it was before, so a recovery never ends "
        "as a mere abort: it commits, or it fails and a newer plan takes its place.",
        mermaid("failure"),
    ),
    ("A job", "As the planner sees it, and as `trainmover status` says.", JOB.mermaid()),
    (
        "A machine",
        "Each way through `registered` is a new incarnation, with a generation of its own: nobody "
        "takes a machine that comes back for the one that was given up.",
        MACHINE.mermaid(),
    ),
    ("A slot that a standby is warm for", "One for each slot it may take.", BAY.mermaid()),
    (
        "A rank",
        "What its training thread does. Commands, broken links and lost neighbours come at any "
        "moment and change no phase: they are weighed when the training thread gets there.",
        RANK.mermaid(),
    ),
)


def page() -> str:
    """The whole page."""
    parts = [f"## {title}\n\n{text}\n\n```mermaid\n{chart}```\n" for title, text, chart in _PARTS]
    return "\n".join([_HEAD, *parts])


if __name__ == "__main__":
    PAGE.write_text(page())
