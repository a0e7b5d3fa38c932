"""Writes the reference of the session: ``python -m trainmover_executor.programs.reference``."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainmover_executor.training.body.step import Step
from trainmover_executor.training.session import Session

__all__ = ["DEFAULT", "document", "write"]

DEFAULT: Final = Path("docs/reference/session.md")
_HEAD: Final = """<!-- Made by trainmover_executor.programs.reference; a test compares. -->

# Session

`from trainmover import Session`. How to use it: [adopt](../howto/adopt.md).
"""
_SECTIONS: Final = ("Args", "Attributes", "Example", "Raises", "Returns")
_INSIDE: Final = frozenset({"before_optimizer", "cast_vote", "check_body", "put_batch_back"})
"""Methods of a step that the session itself calls."""


def document() -> str:
    """The page, as Markdown."""
    lines = [_HEAD.rstrip("\n"), "", *_text(inspect.getdoc(Session) or "")]
    for name, member in _members(Session):
        lines += ["", f"## {_title(name, member, owner='Session')}", ""]
        lines += _text(inspect.getdoc(member) or "")
    lines += ["", "## Step", "", *_text(inspect.getdoc(Step) or "")]
    lines += ["", "`step.committed` is true once the step counts; behind the body it always is."]
    for name, member in _members(Step):
        lines += ["", f"### {_title(name, member, owner='step')}", ""]
        lines += _text(inspect.getdoc(member) or "")
    return "\n".join(lines) + "\n"


def write(path: Path) -> None:
    """Write the page; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document(), encoding="utf-8")


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, as the source has them."""
    for name, member in vars(owner).items():
        if not name.startswith("_") and name not in _INSIDE:
            yield name, member.__func__ if isinstance(member, staticmethod) else member


def _title(name: str, member: Any, *, owner: str) -> str:
    if isinstance(member, property):
        return f"{owner.lower()}.{name}"
    signature = inspect.signature(member)
    shown = [str(each.replace(annotation=each.empty)) for each in signature.parameters.values()]
    keyword = [
        each.name for each in signature.parameters.values() if each.kind is each.KEYWORD_ONLY
    ]
    if keyword:
        shown.insert(len(shown) - len(keyword), "*")
    plain = ", ".join(each for each in shown if each != "self")
    return f"{owner if name == 'init' else owner.lower()}.{name}({plain})"


def _text(doc: str) -> Iterator[str]:
    """A Google-style docstring as Markdown: sections become lists, examples code."""
    section = ""
    for line in _joined(doc).splitlines():
        if (head := line.removesuffix(":")) in _SECTIONS and line.endswith(":"):
            section = head
            yield "" if head == "Example" else f"*{head}*"
            yield "```python" if head == "Example" else ""
        elif section == "Example" and not line.strip():
            yield from ("```", "")
            section = ""
        elif section == "Example":
            plain = re.sub(r"^\s*(>>>|\.\.\.) ?", "", line)
            indent = plain[: len(plain) - len(plain.lstrip())]
            yield from (f"{indent}{part}" for part in plain.strip().split("; "))
        elif section and (found := re.match(r"\s{4}(\w[\w*]*): (.*)", line)):
            yield f"- `{found[1]}`: {_code(found[2])}"
        else:
            yield _code(line.strip())
    if section == "Example":
        yield "```"


def _joined(doc: str) -> str:
    """Lines that go on from the one before are put behind it; examples stay as they are."""
    joined = re.sub(r"\n {8}(?! *(?:>>>|\.\.\.))(\S)", r" \1", doc)
    return re.sub(r"(?<=[^\n:])\n(?=[A-Za-z`(])", " ", joined)


def _code(text: str) -> str:
    return text.replace("``", "`")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the reference of Session and Step.")
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT, help="Default: %(default)s")
    write(parser.parse_args().file)
