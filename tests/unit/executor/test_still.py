"""Modules that do not change are not gone through at each look, and lose nothing by it."""

from __future__ import annotations

import dataclasses
import logging
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from trainmover_executor.program.looking.still import StillModule
from trainmover_executor.program.variables import LoopVariables

SOURCE = """
import logging, math, torch
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)
RATE, NAME, SIZES = 0.5, "host", (1, 2)
TABLE = {"a": [1, 2], "b": {"c": 3}}
SEEN = {1, 2}

def scaled(x, by=2):
    return x * by * RATE

class Meter:
    total = 0
    log: list = []

    def add(self, x):
        Meter.total += x

@dataclass
class Options:
    rate: float = 0.1
    names: list = field(default_factory=list)

OPTIONS = Options()
METER = Meter()
"""

CHANGES: dict[str, Callable[[Any], None]] = {
    "a constant": lambda m: setattr(m, "RATE", 0.25),
    "a list in a table": lambda m: m.TABLE["a"].append(3),
    "a table in a table": lambda m: m.TABLE["b"].update(d=4),
    "a key": lambda m: m.TABLE.update(z=m.TABLE.pop("b")),
    "a set": lambda m: m.SEEN.add(3),
    "a class": lambda m: m.METER.add(5),
    "a list of a class": lambda m: m.Meter.log.append(1),
    "an object": lambda m: setattr(m.OPTIONS, "rate", 0.2),
    "a list of an object": lambda m: m.OPTIONS.names.append("x"),
    "another object": lambda m: setattr(m, "OPTIONS", m.Options(rate=0.3)),
    "an attribute that it had not": lambda m: setattr(m.METER, "count", 1),
}


@pytest.fixture
def module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    name = f"still_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__(name)
    del sys.modules[name]


def shown(module: types.ModuleType) -> str:
    held = (module.RATE, module.TABLE, sorted(module.SEEN), vars(module.METER))
    return repr((held, module.Meter.total, module.Meter.log, module.OPTIONS))


def settled(module: types.ModuleType) -> LoopVariables:
    variables = LoopVariables([])
    variables.changed(None)
    variables.settle()
    variables.changed(None)
    return variables


def test_an_ordinary_module_is_compared(module: types.ModuleType) -> None:
    still = StillModule(vars(module))
    assert still.is_simple
    assert still.is_still
    assert id(module.TABLE["b"]) in set(still.holders)


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_what_changes_is_told(change: Callable[[Any], None], module: types.ModuleType) -> None:
    variables = settled(module)
    assert not [path for path in variables.changed(None) if path.startswith(module.__name__)]
    variables.keep(None)
    assert not [path for path in variables.kept if path.startswith(module.__name__)]
    change(module)
    told = [path for path in variables.changed(None) if path.startswith(module.__name__)]
    assert told
    assert variables.changed(None).keys() >= set(told)  # and from now on
    assert f"{module.__name__}.NAME" not in told  # that is the host's


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize("told", [True, False])
def test_what_a_body_changes_is_put_back(
    *, told: bool, change: Callable[[Any], None], module: types.ModuleType
) -> None:
    variables, before = settled(module), shown(module)
    variables.keep(None)
    change(module)
    assert shown(module) != before
    if told:
        variables.changed(None, votes=True)
    variables.put_back(None)
    assert shown(module) == before


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3),
        torch.Generator(),
        random.Random(3),
        iter([1, 2]),
        [torch.zeros(2)],
        torch.nn.Linear(2, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_change_without_another_object_is_gone_through(
    value: Any, module: types.ModuleType
) -> None:
    module.held = value  # type: ignore[attr-defined]
    assert not StillModule(vars(module)).is_simple


def test_what_had_changed_before_is_told_each_time(module: types.ModuleType) -> None:
    variables = LoopVariables([])
    variables.changed(None)
    module.RATE = 0.125  # type: ignore[attr-defined]
    variables.changed(None)
    variables.settle()
    for _ in range(3):
        assert f"{module.__name__}.RATE" in variables.changed(None)


def test_what_another_module_shares_is_not_told_by_its_name(module: types.ModuleType) -> None:
    other = types.ModuleType(f"{module.__name__}_other")
    other.__file__ = f"{module.__file__}_other"
    exec("class Base:\n  folder = 'a'\nclass Hidden(Base):\n  home = 'b'", vars(other))
    other.generator = torch.Generator()  # type: ignore[attr-defined]
    other.options = module.OPTIONS  # type: ignore[attr-defined]
    module.REGISTRY = {"one": other.Hidden}  # type: ignore[attr-defined]
    sys.modules[other.__name__] = other
    try:
        told = settled(module).changed(None)
        hosts = [path for path in told if "options" in path or "folder" in path or "home" in path]
        assert not hosts, told
    finally:
        del sys.modules[other.__name__]


def test_loggers_are_nobodys_state(module: types.ModuleType) -> None:
    still = StillModule(vars(module))
    logging.getLogger(module.__name__).setLevel(logging.ERROR)
    assert still.is_still


def test_frozen_objects_are_compared(module: types.ModuleType) -> None:
    module.point = dataclasses.make_dataclass("P", ["x"], frozen=True)(1)  # type: ignore[attr-defined]
    assert StillModule(vars(module)).is_still
