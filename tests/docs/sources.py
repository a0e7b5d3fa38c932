"""What the code can say to a user, read from its sources: messages, names of errors, codes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from tests.docs.pages import ROOT

GAP = "…"
"""Stands for what a message is filled with."""


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every module of services and shared, by its path in the repository."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("services", "shared")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def nodes(under: str = "") -> Iterator[ast.AST]:
    """Every node of the modules below a folder."""
    for name, module in modules().items():
        if name.startswith(under):
            yield from ast.walk(module)


def text_of(node: ast.AST) -> str | None:
    """A string as it is written, with gaps for what it is filled with; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    return "".join(text_of(part) or GAP for part in node.values)


@functools.cache
def messages() -> tuple[str, ...]:
    """Every string of the code but its docstrings."""
    documents = {
        id(node.body[0].value)
        for node in nodes()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    every = (text_of(node) for node in nodes() if id(node) not in documents)
    return tuple(dict.fromkeys(text for text in every if text))


def is_said(quote: str) -> bool:
    """Whether one message has the parts of ``quote``, gaps between them, in this order."""
    parts = [part.strip() for part in quote.split(GAP)]
    return any(_holds(message, parts) for message in messages())


def _holds(message: str, parts: list[str]) -> bool:
    at = 0
    for part in parts:
        at = message.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def errors() -> set[str]:
    """Names of the errors that are a ``TrainMoverError``, but for a module's own."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for node in nodes()
        if isinstance(node, ast.ClassDef)
    }
    found = {"TrainMoverError"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return {name for name in found if not name.startswith("_")} - {"TrainMoverError"}


def incidents() -> set[str]:
    """Kinds of the findings of our detectors."""
    found: set[str] = set()
    for node in nodes("services/detector/"):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding":
            named = [each.value for each in node.keywords if each.arg == "kind"]
            found |= _choices((named or node.args)[0])  # one that is closed takes its own kind
    return found


def refusals() -> set[str]:
    """Codes with which the planner refuses a request, or a command on its behalf."""
    found: set[str] = set()
    for folder in ("services/planner/", "services/console/"):
        for node in nodes(folder):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name in ("RequestRefusedError", "Refusal"):
                codes = [each.value for each in node.keywords if each.arg == "code"]
            elif name.rpartition(".")[2] in ("refusal", "_refusal") and len(node.args) == 3:
                codes = [node.args[1]]
            else:
                continue
            found |= {one for code in codes for one in _choices(code)}
    return found


def _choices(node: ast.AST) -> set[str]:
    if isinstance(node, ast.IfExp):
        return _choices(node.body) | _choices(node.orelse)
    return {text} if (text := text_of(node)) is not None else set()
