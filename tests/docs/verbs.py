"""Commands and their options, read from the reference, which is made from the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tests.docs.pages import ROOT, section

REFERENCE = ROOT / "docs/reference/cli.md"


@cache
def verbs() -> dict[str, dict[str, set[str]]]:
    """Options of each command, and what each of them takes where that is one of several words."""
    titles = re.findall(r"^## trainmover (.*)$", REFERENCE.read_text(), re.MULTILINE)
    found = {title: dict(_options(section(REFERENCE, f"trainmover {title}"))) for title in titles}
    before = section(REFERENCE, "Command line").partition("Before any command:")[2]
    everywhere = dict(_options(before.partition("| command |")[0]))
    everywhere |= {"--help": set(), "--install-completion": set()}  # typer's own
    return {verb: {**everywhere, **options} for verb, options in found.items()}


def _options(text: str) -> Iterator[tuple[str, set[str]]]:
    for shown in re.findall(r"^\| `(-[^`]+)`", text, re.MULTILINE):
        plain = shown.replace("\\|", "|").replace(" / ", ", ")
        names = re.findall(r"(?:^|, )(--?[a-z][\w-]*)", plain)
        value = re.sub(r"^(--?[\w-]+(, )?)+ ?", "", plain).strip("{}")
        choices = set(re.split(r"[|,]", value)) if re.search(r"[a-z][|,][a-z]", value) else set()
        for name in names:
            yield name, choices


def pairs(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """(option, what stands behind it); nothing of what is behind ``--`` or a program."""
    for at, word in enumerate(arguments):
        if word == "--" or word.endswith(".py"):
            return
        if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word):
            name, _, value = word.partition("=")
            following = arguments[at + 1] if at + 1 < len(arguments) else ""
            yield name, value or ("" if following.startswith("-") else following)
