"""What pages name in passing is there: variables, files, tests, metrics, streams, events, calls."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.docs import sources
from tests.docs.pages import PROSE, ROOT, codes, each, fences, named, said
from tests.support.metrics import exported

from trainmover import Session
from trainmover.bus.streams import stream_configs
from trainmover.events import CATALOG
from trainmover.security.folder import Setup, write
from trainmover_executor.training.body.step import Step

MADE = re.compile(r"(out|runs|~|\.venv|trainmover-JOBID|/tmp|/opt|/var|/data|/etc|/dev)(/|$)")
"""Where files are that a run makes, or that other programs have."""

CREATED = {
    "demo.html",
    "failures.csv",
    "out.json",
    "docker-compose.override.yml",
    "policy.yaml",
    "pool.yaml",
}
"""Names that a page gives to files of the reader."""


# -- variables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PROSE, ids=named)
def test_a_variable_is_one_that_is_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    told = set(re.findall(r"\bTRAINMOVER_[A-Z]+(?:_[A-Z]+)*\b", text))
    assert told <= variables(), named(page)


@cache
def variables() -> set[str]:
    """Names that the code, the deployments or the examples read."""
    folders = ("shared", "services", "deploy")
    paths = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    code = [path for path in paths if path.suffix not in {".md", ".pyc"}]
    text = "\n".join(path.read_text("utf-8", "ignore") for path in code)
    text += (ROOT / "docker-compose.yml").read_text()
    return set(re.findall(r"\bTRAINMOVER_[A-Z]+(?:_[A-Z]+)*\b", text))


# -- files -----------------------------------------------------------------------------------------

KINDS = "py|md|ya?ml|sbatch|lock|json|toml|csv|conf|html|pem|key|in"
RATE = r"\d+/(?:h(?:our)?|d(?:ay)?|week|λ)\b"
FILES = each(said(rf"(?<![\w./:~@-])(?!{RATE})(?:[\w.-]+/)+[\w.*-]*|^[\w-]+\.(?:{KINDS})\b"))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders from which pages name files: packages, and what `trainmover bus setup` writes."""
    keys = tmp_path_factory.mktemp("bus") / "security"
    setup = Setup(
        jobs=("gpt",),
        machines=("NAME",),
        subscribers=("TOOL",),
        pools={"POOL": ()},
        routes=("nats-1:6222",),
    )
    write(keys, setup)
    packages = [path.parent for path in ROOT.glob("services/*/*/__init__.py")]
    folders = ["", "shared", "shared/trainmover", "services", "deploy", "docs", "docs/howto"]
    roots = [*packages, ROOT / "tests", ROOT / "deploy"]
    inner = [one for root in roots for one in root.rglob("*") if one.is_dir()]
    services = [package.parent for package in packages]
    return [
        *(ROOT / one for one in folders),
        *services,
        *packages,
        *inner,
        keys,
        keys / "server",
        keys.parent,
    ]


@pytest.mark.parametrize(("page", "path"), FILES, ids=lambda value: value[:60])
def test_a_file_is_there(page: str, path: str, bases: list[Path]) -> None:
    if MADE.match(path) or path in CREATED or path.startswith("trainmover.dev/"):
        return
    around = [(ROOT / page).parent, *(ROOT / page).parents]
    there = [base for base in (*around, *bases) if (base / path).exists()]
    assert there, f"{page}: nobody has {path}"


def test_a_test_that_is_named_is_there() -> None:
    for page, match in said(r"(tests/[\w/]+\.py)::(\w+)"):
        text = (ROOT / match[1]).read_text()
        assert re.search(rf"def {match[2]}\(", text), f"{page}: {match[0]}"


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "name"), each(said(r"(?<![\w./-])trainmover_[a-z_]+")))
def test_a_metric_is_exported_or_it_is_a_package(page: str, name: str) -> None:
    packages = {path.parent.name for path in ROOT.glob("services/*/*/__init__.py")}
    assert name in packages | exported().keys(), page


def test_the_page_on_metrics_has_all_of_them() -> None:
    told = set(re.findall(r"`(trainmover_\w+)", (ROOT / "docs/howto/observe.md").read_text()))
    parts = ("_bucket", "_count", "_sum", "_created")
    assert {name for name in exported() if not name.endswith(parts)} <= told


EVENTS = each(said(r"^[a-z]+\.[a-z_]+$"))


@pytest.mark.parametrize(("page", "name"), each(said(r"\bTM_[A-Z]+\b")))
def test_a_stream_is_one_that_setup_makes(page: str, name: str) -> None:
    assert name in sources.messages(), page


def test_the_bus_takes_at_most_as_much_disk_as_is_said() -> None:
    most = sum(config.max_bytes or 0 for config in stream_configs()) // 2**20
    assert f"at most {most:,} MiB" in (ROOT / "docs/howto/production.md").read_text()


FACTS = {kind.name for kind in CATALOG.values()}
ENTITIES = {kind.entity for kind in CATALOG.values()}
SUFFIXES = {"log", "md", "py", "yaml"}


@pytest.mark.parametrize(("page", "name"), EVENTS)
def test_an_event_is_in_the_catalogue(page: str, name: str) -> None:
    entity, _, fact = name.partition(".")
    if entity not in ENTITIES or fact in SUFFIXES:
        return
    attribute = entity == "step" and fact in members_of(Step)
    # Spans and log lines have names of their own.
    assert name in FACTS or attribute or name in sources.messages(), f"{page}: {name}"


def members_of(kind: type) -> set[str]:
    """Attributes and methods, those that are set in ``__init__`` included."""
    set_there = re.findall(r"self\.([a-z]\w*)\b", inspect.getsource(kind))
    return {*dir(kind), *set_there}


CALLS: dict[str, Callable[..., object] | type] = {"session": Session, "step": Step}


@pytest.mark.parametrize("page", PROSE, ids=named)
def test_a_call_of_the_session_is_one_that_it_takes(page: Path) -> None:
    blocks = [text for language, text in fences(page) if language == "python"]
    for text in [*codes(page), *blocks]:
        for call in _calls(text):
            _check_call(page, call)


def _calls(text: str) -> Iterator[ast.Call | ast.Attribute]:
    try:
        tree = ast.parse(text.replace("...", "x").removesuffix(":"))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Attribute):
            yield node


def _check_call(page: Path, node: ast.Call | ast.Attribute) -> None:
    if isinstance(node, ast.Attribute):
        owner = CALLS.get(ast.unparse(node.value))
        other = ast.unparse(node) in {*FACTS, *sources.messages()} or node.attr in SUFFIXES
        if isinstance(owner, type) and not other:
            assert node.attr in members_of(owner), f"{named(page)}: {ast.unparse(node)}"
        return
    name = ast.unparse(node.func)
    owner, _, method = name.partition(".")
    if name == "Session":
        called: Callable[..., object] = Session.__init__
    elif owner == "session" and hasattr(Session, method):
        called = getattr(Session, method)
    else:
        return
    parameters = inspect.signature(called).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for keyword in node.keywords:
        assert keyword.arg in parameters, f"{named(page)}: {ast.unparse(node)}"
