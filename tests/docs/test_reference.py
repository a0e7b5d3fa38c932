"""References tell of everything that the code has."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

from trainmover_executor.programs import reference

NAME = re.compile(r"TRAINMOVER_[A-Z]+(?:_[A-Z]+)*")
KEYS = "TRAINMOVER_KEYS"  # of a container's own script


def test_the_session_is_current() -> None:
    committed = (ROOT / reference.DEFAULT).read_text(encoding="utf-8")
    assert committed == reference.document(), (
        "run: python -m trainmover_executor.programs.reference"
    )


def test_every_variable_is_told_and_none_that_is_not_there() -> None:
    used = {
        name
        for folder in ("shared", "services")
        for path in (ROOT / folder).rglob("*.py")
        for name in NAME.findall(path.read_text(encoding="utf-8"))
    }
    told = set(NAME.findall((ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")))
    assert told == used - {KEYS}
