"""Every command that the documentation shows is one that parses, and everything it names is there.

What commands do is tested elsewhere; here it is only that nobody is told of one that is not there.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.docs.pages import PAGES, ROOT, fences, named
from tests.docs.verbs import pairs, verbs
from typer.testing import CliRunner

from trainmover_console.cli.app import app
from trainmover_console.reference import cli as reference
from trainmover_executor.agent.options import parse
from trainmover_executor.pooled.options import parse as parse_pooled

PASSED_ON = ("planner run", "detector run", "pool serve")
"""Commands whose options go to a service, which reads them."""

MAKEFILE = (ROOT / "Makefile").read_text()


def stub(source: typer.Typer, *, root: bool) -> typer.Typer:
    """The same commands with the same options, that do nothing."""

    def idle(callback: Any) -> Any:
        @functools.wraps(callback)
        def nothing(*_: object, **__: object) -> None:
            return None

        return nothing

    made = typer.Typer(no_args_is_help=True)
    if root and source.registered_callback is not None:
        made.callback()(idle(source.registered_callback.callback))
    for info in source.registered_commands:
        settings = info.context_settings
        made.command(info.name, context_settings=settings)(idle(info.callback))
    for inner in source.registered_groups:
        assert inner.typer_instance is not None
        made.add_typer(stub(inner.typer_instance, root=False), name=inner.name)
    return made


STUB = stub(app, root=True)


def shown() -> Iterator[tuple[str, str]]:
    """(page, command) of every console block."""
    for page in PAGES:
        for language, text in fences(page):
            if language != "console":
                continue
            joined = re.sub(r"\\\n\s*", " ", text)
            for line in joined.splitlines():
                if line.startswith("$ "):
                    yield named(page), line.removeprefix("$ ")


COMMANDS = list(dict.fromkeys(shown()))


def words(command: str) -> list[str]:
    """Its words, without comments, environment, substitutions and what it is piped into."""
    plain = re.sub(r"[<$]\([^)]*\)", "SUBSTITUTED", command)
    found = shlex.split(plain, comments=True)
    while found and re.fullmatch(r"[A-Z_]+=.*", found[0]):
        found.pop(0)
    for stop in ("|", ">", ">>", "&&", "&"):
        if stop in found:
            found = found[: found.index(stop)]
    return found


def ours(found: list[str]) -> list[str] | None:
    """Arguments of ``trainmover``, wherever it is run; None where it is not."""
    if found[:3] == ["docker", "compose", "run"] and "cli" in found:
        return found[found.index("cli") + 1 :]
    if found[:1] == ["kubectl"]:
        found = found[found.index("--") + 1 :] if "--" in found else []
    return found[1:] if found[:1] == ["trainmover"] else None


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: value[:60])
def test_it_exists(page: str, command: str) -> None:
    found = words(command)
    arguments = ours(found)
    if arguments is not None and arguments[:2] == ["agent", "--pool"]:
        parse_pooled(arguments[1:])
    elif arguments is not None and arguments[:1] == ["agent"]:
        parse(arguments[1:])
    elif arguments is not None and " ".join(arguments[:2]) in PASSED_ON:
        known = verbs()[" ".join(arguments[:2])]
        assert {option for option, _ in pairs(arguments[2:])} <= known.keys()
    elif arguments is not None:
        done = CliRunner().invoke(STUB, arguments)
        assert done.exit_code == 0, f"{page}: {command}\n{done.output}"
    elif found[:1] == ["make"]:
        for target in (each for each in found[1:] if "=" not in each):
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"{page}: {command}"
    elif found[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(found[2]), f"{page}: {command}"
    elif found[:1] == ["python"]:
        assert (ROOT / found[1]).is_file(), f"{page}: {command}"


def test_there_is_something_to_test() -> None:
    assert sum(ours(words(command)) is not None for _, command in COMMANDS) > 40


def test_a_wrong_command_would_be_seen() -> None:
    for arguments in (["stauts"], ["status", "--jobb", "x"], ["migration", "shw", "m"]):
        assert CliRunner().invoke(STUB, arguments).exit_code == 2


def test_every_verb_is_shown_somewhere() -> None:
    """A command that no page shows is one that nobody finds."""
    titles = re.findall(r"^## trainmover (.*)$", reference.document(), re.MULTILINE)
    known = set(titles)
    told = {" ".join(arguments) for _, each in COMMANDS if (arguments := ours(words(each)))}
    missing = {verb for verb in known if not any(f" {one} ".find(f" {verb} ") >= 0 for one in told)}
    # Of detectors and notices their own pages tell, and the launchers start the planner.
    assert {
        verb
        for verb in missing
        if not verb.startswith(("detector", "planner", "notice", "job record"))
    } == {"demo"}


def test_the_reference_is_current() -> None:
    committed = (ROOT / reference.DEFAULT).read_text(encoding="utf-8")
    assert committed == reference.document(), "run: python -m trainmover_console.reference.cli"


PYTHON = [
    pytest.param(text, id=f"{named(page)}-{number}")
    for page in PAGES
    for number, (language, text) in enumerate(fences(page))
    if language == "python"
]


@pytest.mark.parametrize("text", PYTHON)
def test_python_is_python(text: str) -> None:
    ast.parse(text)


def test_pages_are_found() -> None:
    assert ROOT / "README.md" in PAGES
    assert Path(ROOT / "docs/quickstart.md") in PAGES
