"""The documentation's pages, their code blocks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")

PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "services").rglob("*.md"),
    ]
)


PROSE = [
    page for page in PAGES if page.name != "CHANGELOG.md" and ROOT / "docs/adr" not in page.parents
]
"""Pages that say what is; records of decisions tell of their day, the changelog of what was."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fences(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every code block."""
    return [(each[1], each[2]) for each in _FENCE.finditer(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    """The page without its code blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "``", _FENCE.sub("", page.read_text(encoding="utf-8")))


def links(page: Path) -> Iterator[str]:
    for found in _LINK.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        yield found[1]


def anchors(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    found: set[str] = set()
    for line in _FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        if heading := re.match(r"#{1,6} (.*)", line):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
            found.add(re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-"))
    return found


def section(page: Path, title: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(title)}\n", text, re.MULTILINE)
    assert found, f"{named(page)} has no section {title!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def table(text: str) -> list[list[str]]:
    """Rows of the tables in a text, without their heads."""
    rows: list[list[str]] = []
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if not line.startswith("|") or set(line) <= set("|- "):
            continue
        if before.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def codes(page: Path) -> list[str]:
    """Inline code of a page, with the bars of tables as they are meant."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return [found.replace("\\|", "|") for found in re.findall(r"`([^`\n]+)`", text)]


def said(pattern: str) -> list[tuple[str, re.Match[str]]]:
    """(page, match) of every inline code that matches."""
    found = re.compile(pattern)
    every = ((named(page), found.search(code)) for page in PROSE for code in codes(page))
    return [(page, match) for page, match in every if match is not None]


def each(matches: list[tuple[str, re.Match[str]]]) -> list[tuple[str, str]]:
    """(page, what matched), once."""
    return list(dict.fromkeys((page, match[0]) for page, match in matches))
