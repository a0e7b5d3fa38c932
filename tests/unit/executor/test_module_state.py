"""What a model of the program's own keeps beside parameters and buffers."""

from __future__ import annotations

import collections
import sys
import sysconfig
import types
from typing import Any

import pytest
import structlog
import torch
from torch import nn

from trainmover_executor.checks.left_behind import LeftBehind, attributes_of
from trainmover_executor.program.looking import modules
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


@pytest.fixture(autouse=True)
def _nothing_was_seen_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes that another test found are looked at in the whole process."""
    monkeypatch.setattr(modules, "_seen_to_change", set())


class Meter:
    def __init__(self) -> None:
        self.sum, self.n = 0.0, 0

    def update(self, value: float) -> None:
        self.sum += value
        self.n += 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.meter = 0, Meter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.meter.update(x.sum().item())
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.meter, self.meters = Meter(), {"a": Meter()}
        self.last: Meter | None = None
        self.settings = types.SimpleNamespace(factor=1)
        self.recent: Any = collections.deque(maxlen=3)
        self.noise = torch.Generator().manual_seed(1)
        self.usage = torch.zeros(3)
        self.features = torch.zeros(9000)
        self._private = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        self.meter.update(1.0)
        self.meters.setdefault("b", Meter()).update(2.0)
        self.last = Meter()
        self.settings.factor += 1
        self.recent.append(self.settings.factor)
        self.usage = self.usage + torch.rand(3, generator=self.noise)
        self.features = x.new_ones(9000)
        self._private += 1
        result: torch.Tensor = self.line(x)
        return result

    def shown(self) -> Any:
        meters = {"": self.meter, **self.meters, **{str(n): b.meter for n, b in self.numbered()}}
        return (
            {name: (meter.sum, meter.n) for name, meter in meters.items()},
            self.last is not None and vars(self.last),
            self.settings.factor,
            [*self.recent],
            self.usage.tolist(),
            torch.rand(1, generator=self.noise).item(),
            [block.calls for _, block in self.numbered()],
            self._private,
        )

    def numbered(self) -> list[tuple[int, Any]]:
        return [*enumerate(self.blocks)]


def run(told: dict[str, Any] | None) -> tuple[dict[str, Any], Any, list[str]]:
    model = Net()
    variables, left, frame = LoopVariables([], models=[model]), LeftBehind(), sys._getframe()
    variables.changed(frame, asks=True)
    left.look([*variables.passed_over(frame), *attributes_of([model])], frame, memory=())
    if told is None:
        model(torch.ones(1, 2))
    else:
        assert [path for path in variables.load(told, frame) if "model" in path] == []
    told = unpack_tree(pack_tree(variables.changed(frame, asks=True)))
    with structlog.testing.capture_logs() as logs:
        later = [*variables.passed_over(frame), *attributes_of([model])]
        left.look(later, frame, memory=(), was_plain=variables.was_plain)
    said = [line["variable"].rpartition(".")[2] for line in logs if "model" in line["variable"]]
    return told, model.shown(), said


def test_it_comes_to_a_joiner_and_large_tensors_are_said() -> None:
    told, there, said = run(None)
    assert said == ["features"]
    _, here, _ = run(told)
    assert here == there


def test_what_an_aborted_step_did_to_it_is_taken_back() -> None:
    model, same = Net(), Net()
    noise, meter = model.noise, model.meter
    variables = LoopVariables([], models=[model])
    for each in (model, same):
        each(torch.ones(1, 2))
    variables.keep(sys._getframe())
    model(torch.ones(1, 2))
    variables.put_back(sys._getframe())
    assert (model.noise, model.meter) == (noise, meter)
    assert model.shown() == same.shown()


def test_an_object_of_a_package_that_a_module_keeps_is_carried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``self.obs_rms = RunningMeanStd(...)``, which changes in itself."""
    package = types.ModuleType("running_of_others")
    package.__file__ = f"{sysconfig.get_path('purelib')}/running_of_others.py"
    monkeypatch.setitem(sys.modules, package.__name__, package)
    code = """
class Running:
    def __init__(self):
        self.mean, self.count = 0.0, 0

    def update(self, value):
        self.mean += value
        self.count += 1
"""
    exec(compile(code, package.__file__, "exec"), vars(package))

    def run(*, take: Any = None) -> tuple[Any, Any]:
        model = nn.Module()
        model.__class__ = type("Policy", (nn.Module,), {"__module__": __name__})
        model.running = package.Running()
        variables, frame = LoopVariables([], models=[model]), sys._getframe()
        variables.changed(frame)
        if take is None:
            model.running.update(2.5)
        else:
            assert variables.load(unpack_tree(pack_tree(take)), frame) == []
        return variables.changed(frame), vars(model.running)

    told, theirs = run()
    assert theirs == {"mean": 2.5, "count": 1}
    assert run(take=told)[1] == theirs


def test_a_number_that_is_set_by_name_is_carried_once_it_was_seen_to_change() -> None:
    """``setattr(self, name, value)``, or in its ``__dict__``: no code of the class stores it."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, "calls", 0)  # noqa: B010 - as programs do

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.__dict__.update(calls=self.__dict__["calls"] + 1)
            return x

    def run(*, take: Any = None) -> tuple[Any, int]:
        model = Counts()
        variables, left, frame = LoopVariables([], models=[model]), LeftBehind(), sys._getframe()
        variables.changed(frame)
        left.look(attributes_of([model]), frame, memory=())
        if take is not None:
            assert variables.load(unpack_tree(pack_tree(take)), frame) == []
            return variables.changed(frame), model.calls
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                model(torch.ones(1))
                left.look(attributes_of([model]), frame, memory=())
                told = variables.changed(frame)
        variables.keep(frame)
        model(torch.ones(1))
        variables.put_back(frame)
        assert not logs
        return told, model.calls

    told, theirs = run()
    assert theirs == 3
    assert run(take=told)[1] == 3


@pytest.mark.parametrize("kind", ["tuple", "dict", "function"])
def test_a_module_that_hides_in_another_is_met(kind: str) -> None:
    """A teacher that is kept out of the parameters; the session may not know that it changes."""
    teacher = nn.Linear(2, 2)

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.__dict__["hidden"] = {
                "tuple": (teacher,),
                "dict": teacher,
                "function": lambda: teacher,
            }[kind]

    variables = LoopVariables([], models=[Student()])
    assert teacher in [value for _, value in variables.passed_over(sys._getframe())]
