"""Where output goes: data to stdout as table, JSON or YAML; messages to stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from trainmover_console.view import jsonable

__all__ = ["Format", "emit", "fail", "messages", "note", "table", "to_yaml", "warn"]

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Format(StrEnum):
    """How data is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def messages() -> Console:
    """The console for people; honours ``NO_COLOR`` and a stderr that is no terminal."""
    return Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """Tell people something."""
    messages().print(escape(text), soft_wrap=True)


def warn(text: str) -> None:
    """Tell people something they should act on."""
    messages().print(f"[yellow]warning:[/] {escape(text)}", soft_wrap=True)


def fail(text: str, *, next_step: str = "") -> None:
    """Tell people what went wrong and what to do about it."""
    console = messages()
    console.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
    if next_step:
        console.print(f"  next: {escape(next_step)}", soft_wrap=True)


def emit(data: Any, *, format: Format, render: Callable[[], RenderableType]) -> None:  # noqa: A002
    """Write data to stdout.

    Args:
        data: JSON-ready value.
        format: How to write it.
        render: Makes the table for people, called for ``Format.TABLE`` alone.
    """
    if format is Format.JSON:
        sys.stdout.write(jsonable.dumps(data, indent=2) + "\n")
    elif format is Format.YAML:
        sys.stdout.write(to_yaml(data))
    else:
        Console(highlight=False).print(render())


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None
) -> Table:
    """A plain table; None is shown as a dash."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*("-" if cell is None else escape(str(cell)) for cell in row))
    return made


def to_yaml(data: Any) -> str:
    """JSON-ready data as block-style YAML; scalars are written as JSON, which YAML contains."""
    return "\n".join(_yaml_lines(data)) + "\n"


def _yaml_lines(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            name = key if _PLAIN_KEY.fullmatch(str(key)) else json.dumps(str(key))
            if _is_block(value):
                yield f"{name}:"
                yield from (f"  {line}" for line in _yaml_lines(value))
            else:
                yield f"{name}: {json.dumps(value)}"
    elif isinstance(data, list) and data:
        for item in data:
            first, *rest = _yaml_lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield json.dumps(data)


def _is_block(value: Any) -> bool:
    return isinstance(value, Mapping | list) and bool(value)
