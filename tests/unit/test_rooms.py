"""The rooms: how many modules a package has, and what the glossary and the API page say of them."""

from __future__ import annotations

import importlib
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 8


def packages() -> list[Path]:
    """The top folder of each package, as the wheel has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [
        ROOT / one for one in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ]


@pytest.mark.parametrize("package", packages(), ids=lambda path: path.name)
def test_a_room_has_at_most_eight_modules(package: Path) -> None:
    full = {}
    for room in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        modules = [path.stem for path in room.glob("*.py") if not path.stem.startswith("__")]
        if len(modules) > MOST:
            full[str(room.relative_to(ROOT))] = len(modules)
    assert not full, "split these: in a room for each thing they do, see docs/architecture.md"


def test_each_word_of_the_glossary_has_an_owner() -> None:
    page = (ROOT / "docs/concepts/glossary.md").read_text()
    owners = re.findall(r"\| `([\w.]+)` \|$", page, re.MULTILINE)
    assert len(owners) >= 30
    for owner in owners:
        assert find_spec(owner) is not None, f"{owner} does not exist"


def test_the_architecture_page_names_files_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    files = [path for package in packages() for path in package.rglob("*.py")]
    known = {str(path.relative_to(ROOT)) for path in files}
    for name in re.findall(r"`([\w/]+\.py)`", page):
        assert any(one.endswith(f"/{name}") for one in known), f"there is no {name}"


def test_the_api_page_lists_what_is_exported() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    listed = dict(re.findall(r"^\| `([\w.]+)` \| (.+?) \|", page, re.MULTILINE))
    assert listed
    for module, names in listed.items():
        public = set(importlib.import_module(module).__all__)
        assert set(re.findall(r"`(\w+)`", names)) == public, module
