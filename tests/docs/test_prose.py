"""What pages say of commands in passing: verbs, options and their values, exit codes, what is run.

Code blocks are looked at by test_commands; here it is the code between words.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from tests.docs import sources
from tests.docs.pages import PROSE, ROOT, codes, each, named, said
from tests.docs.test_commands import MAKEFILE, words
from tests.docs.verbs import pairs, verbs

from trainmover_console.cli.exits import ExitCode

OTHERS = {
    "--build-arg": "docker buildx",
    "--extra-index-url": "pip",
    "--kill-on-bad-exit": "srun",
    "--no-kill": "srun",
    "--target": "docker build",
    "--signal": "nats-server",
    "--strict": "mypy",
    "--wait": "srun",
}
"""Options of programs that are not ours."""

# -- commands and their options --------------------------------------------------------------------


def verb_of(arguments: list[str]) -> tuple[str, list[str]]:
    """The command that these arguments name, and what follows; the group where it is one."""
    for length in (2, 1):
        name = " ".join(arguments[:length])
        if len(arguments) >= length and name in verbs():
            return name, arguments[length:]
    return "", arguments


COMMANDS = [
    (page, match[1])
    for page, match in dict.fromkeys(said(r"^trainmover ([a-z].*)$"))
    if "|" not in match[1].split(" --")[0]
]


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: value[:50])
def test_a_command_has_the_verb_and_the_options(page: str, command: str) -> None:
    arguments = words(command.replace("...", "X"))
    verb, rest = verb_of(arguments)
    groups = {name.split()[0] for name in verbs() if " " in name}
    if not verb:
        assert arguments[0] in groups, f"{page}: there is no command {command!r}"
        assert len(arguments) == 1, f"{page}: there is no command {command!r}"
    for option, value in pairs(rest):
        known = verbs()[verb]
        assert option in known, f"{page}: {verb} has no {option}"
        check_value(page, option, value, [known[option]])


def check_value(page: str, option: str, value: str, choices: list[set[str]]) -> None:
    """A word behind an option is one that it takes, where it takes one of some."""
    if value and value.islower() and choices and all(choices):
        taken = set().union(*choices)
        assert set(re.split(r"[|,]", value.strip("{}"))) <= taken, (
            f"{page}: {option} takes {sorted(taken)}"
        )


OPTIONS = [
    (page, match[0]) for page, match in dict.fromkeys(said(r"(?<![\w-])--[a-z].*$|^-[a-z]( .*)?$"))
]


@pytest.mark.parametrize(("page", "text"), OPTIONS, ids=lambda value: value[:50])
def test_an_option_is_one_that_some_command_has(page: str, text: str) -> None:
    if any(text in code and "…" not in code for code in quotes()):
        return
    try:
        arguments = shlex.split(text)
    except ValueError:
        arguments = text.split()
    for option, value in pairs(arguments):
        if option in OTHERS:
            continue
        own = [options[option] for options in verbs().values() if option in options]
        assert own or option in tools(), f"{page}: nothing has {option}"
        check_value(page, option, value, own)


@cache
def quotes() -> frozenset[str]:
    """Messages that the page on troubleshooting quotes."""
    page = ROOT / "docs/howto/troubleshooting.md"
    return frozenset(code for code in codes(page) if code.count(" ") > 2 and sources.is_said(code))


@cache
def tools() -> set[str]:
    """Options of what is run by `python -m` and of the example programs."""
    folders = ("benchmarks", "tests", "tools", "examples", "services/executor")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {
        option
        for path in paths
        for option in re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", path.read_text("utf-8"))
    }


def test_commands_about_a_job_write_data_for_scripts_but_for_two() -> None:
    """As docs/howto/operate.md and docs/quickstart.md say."""
    about = ("status", "watch", "migrate", "drain", "job", "machine", "migration", "automation")
    asked = {verb for verb in verbs() if verb.split()[0] in (*about, "policy", "event")}
    silent = {verb for verb in asked if "-o" not in verbs()[verb]}
    assert silent == {"watch", "machine depart", "job record"}  # the last writes a file


def test_what_is_wrong_would_be_seen() -> None:
    for command in ("stauts", "status --jobb x", "run --automation never", "event --output json"):
        with pytest.raises(AssertionError):
            test_a_command_has_the_verb_and_the_options("here", command)
    for option in ("--jobb", "--automation never"):
        with pytest.raises(AssertionError):
            test_an_option_is_one_that_some_command_has("here", option)
    assert len(COMMANDS) > 80
    assert len(OPTIONS) > 80


# -- exit codes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PROSE, ids=named)
def test_an_exit_code_is_one_of_ours(page: Path) -> None:
    told = re.findall(r"exit codes? (?:is |of )?`?(\d+)", page.read_text(encoding="utf-8"))
    assert {int(code) for code in told} <= {*ExitCode}


# -- what is run from a checkout -------------------------------------------------------------------


@pytest.mark.parametrize(("page", "command"), each(said(r"^(make|python -m|pytest) .*$")))
def test_what_is_run_from_a_checkout_is_there(page: str, command: str) -> None:
    found = words(command)
    if found[0] == "make":
        assert re.search(rf"^{found[1]}:", MAKEFILE, re.MULTILINE), page
    elif found[0] == "pytest":
        paths = [word.partition("::")[0] for word in found[1:] if word.startswith("tests/")]
        assert paths, page
        assert all((ROOT / path).exists() for path in paths), page
    else:
        module = found[2].replace(".", "/")
        bases = [ROOT, *ROOT.glob("services/*"), ROOT / "shared"]
        assert any(
            (base / f"{module}.py").exists() or (base / module / "__main__.py").exists()
            for base in bases
        ), page
