"""Writes the reference of the command line: ``python -m trainmover_console.reference.cli``."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, CommandInfo, OptionInfo

from trainmover_console.cli.app import app
from trainmover_console.cli.exits import ExitCode
from trainmover_console.cli.services.processes import POOLED, SERVICES

__all__ = ["document", "write"]

DEFAULT: Final = Path("docs/reference/cli.md")
_HEAD: Final = """<!-- Made by `python -m trainmover_console.reference.cli`; a test compares. -->

# Command line

Data goes to stdout, as `-o table`, `json` or `yaml`; messages go to stderr.
`NO_COLOR` is honoured. Jobs of this host are found by themselves; `--job` picks among several, and
`--job J --nats URL` names one elsewhere. `trainmover --install-completion` completes commands and
options in your shell.

| exit code | meaning |
|---|---|
"""


def document() -> str:
    """The page, as Markdown."""
    lines = [_HEAD.rstrip("\n")]
    lines += [f"| {code.value} | {_words(code)} |" for code in ExitCode]
    assert app.registered_callback is not None  # noqa: S101 - it is where the version is told
    lines += ["", "Before any command:", "", *_options(app.registered_callback.callback)]
    lines += ["", "| command | |", "|---|---|"]
    commands = list(_commands(app, "trainmover"))
    for name, info in commands:
        lines.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {_first(info.callback)} |")
    for name, info in commands:
        lines += ["", f"## {name}", "", *_command(name, info)]
    return "\n".join(lines) + "\n"


def write(path: Path) -> None:
    """Write the page; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document(), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One parameter of a command, as its signature declares it."""

    name: str
    kind: Any
    told: ArgumentInfo | OptionInfo
    default: Any

    @property
    def argument(self) -> bool:
        return isinstance(self.told, ArgumentInfo)

    @property
    def flag(self) -> bool:
        return self.kind is bool

    @property
    def choices(self) -> str:
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return "|".join(str(one.value) for one in self.kind)
        if get_origin(self.kind) is Literal:
            return "|".join(map(str, get_args(self.kind)))
        return ""

    @property
    def usage(self) -> str:
        name = self.told.metavar or self.name.upper()
        return name if self.default is Parameter.empty else f"[{name}]"

    @property
    def names(self) -> str:
        # typer takes the first name for a default until it builds the command.
        first = self.told.default
        known = [first] if isinstance(first, str) and first.startswith("-") else []
        known += self.told.param_decls or ()
        plain = f"--{self.name.replace('_', '-')}"
        if self.flag:
            names = known or (
                [f"{plain}/--no-{plain[2:]}"] if self.default is not False else [plain]
            )
            return ", ".join(names).replace("/", " / ")
        value = self.choices or self.told.metavar or _TYPES.get(self.kind, "TEXT")
        return f"{', '.join(known or [plain])} {value}"


_TYPES: Final[dict[Any, str]] = {int: "N", float: "X", Path: "PATH"}


def _commands(group: typer.Typer, prefix: str) -> Iterator[tuple[str, CommandInfo]]:
    """(full name, command) of every command, in the order of the program."""
    for info in group.registered_commands:
        name = info.name or getattr(info.callback, "__name__", "").replace("_", "-")
        yield f"{prefix} {name}", info
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            yield from _commands(inner.typer_instance, f"{prefix} {inner.name}")


def _command(name: str, info: CommandInfo) -> Iterator[str]:
    arguments = [one.usage for one in _parameters(info.callback) if one.argument]
    usage = " ".join([info.options_metavar or "[OPTIONS]", *arguments])
    yield from ("```", f"{name} {usage}", "```", "", _plain(inspect.getdoc(info.callback) or ""))
    words = tuple(name.split()[1:])
    rows = _service(SERVICES[words]) if words in SERVICES else _options(info.callback)
    if rows:
        yield ""
        yield from rows
    if words == ("agent",):
        yield from ("", "With `--pool`, which comes before the program's `--`:", "")
        yield from _service(POOLED)


def _service(module: str) -> list[str]:
    """Options of a service, as it tells them itself: the console imports none."""
    command = [sys.executable, "-m", module, "--help"]
    # So wide that no help is wrapped; it may begin on a line of its own.
    environment = {**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"}
    told = subprocess.run(  # noqa: S603 - our own service
        command, env=environment, capture_output=True, text=True, check=True
    )
    rows: list[tuple[str, str]] = []
    for line in told.stdout.splitlines():
        if found := re.match(r"  (-[^ ]+(?:[ ,]+[^ ]+)*?)(?:  +(.*))?$", line):
            rows.append((found[1], found[2] or ""))
        elif rows and line.startswith(" " * 8):
            rows[-1] = (rows[-1][0], line.strip())
    kept = [(names, text) for names, text in rows if "--help" not in names]
    lines = [f"| `{_cell(names)}` | {_cell(text)} |" for names, text in kept]
    return ["| | |", "|---|---|", *lines]


def _options(callback: Any) -> list[str]:
    known = _parameters(callback)
    rows = [f"| `{one.usage}` | {_cell(one.told.help)} |" for one in known if one.argument]
    rows += [
        f"| `{_cell(one.names)}` | {_cell(one.told.help)}{_extra(one)} |"
        for one in known
        if not one.argument
    ]
    return ["| | |", "|---|---|", *rows] if rows else []


def _parameters(callback: Any) -> list[_Parameter]:
    hints = get_type_hints(callback, include_extras=True)
    found = []
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, *told = (
            get_args(hints[name]) if get_origin(hints[name]) is Annotated else [hints[name]]
        )
        info = next((one for one in told if isinstance(one, ArgumentInfo | OptionInfo)), None)
        if info is not None and not info.hidden:
            found.append(_Parameter(name, _single(kind), info, parameter.default))
    return found


def _single(kind: Any) -> Any:
    """``list[str] | None`` takes strings."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    return get_args(kind)[0] if get_origin(kind) is list else kind


def _extra(one: _Parameter) -> str:
    parts = []
    default = getattr(one.default, "value", one.default)
    if default not in (None, False, True, (), Parameter.empty):
        parts.append(f"default `{default}`")
    if one.told.envvar:
        parts.append(f"`{one.told.envvar}`")
    return f" ({'; '.join(parts)})" if parts else ""


def _first(callback: Any) -> str:
    return _plain(inspect.getdoc(callback) or "").split("\n", maxsplit=1)[0]


def _plain(text: str) -> str:
    """Docstrings are wrapped for editors; a paragraph is one line here."""
    paragraphs = re.split(r"\n\s*\n", text.replace("\b\n", "").strip())
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _words(code: ExitCode) -> str:
    """The docstring under an exit code: enum members keep none."""
    source = Path(sys.modules[ExitCode.__module__].__file__ or "").read_text(encoding="utf-8")
    found = re.search(rf'{code.name} = \d+\n\s+"""(.*?)"""', source, re.DOTALL)
    return _cell(found[1]).replace("``", "`") if found else code.name.lower()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the reference of the command line.")
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT, help="Default: %(default)s")
    write(parser.parse_args().file)
