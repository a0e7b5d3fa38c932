"""Variables are found by the same path at every process, whatever names the program has."""

from __future__ import annotations

import sys
import sysconfig
import types

import pytest
import torch
from torch import nn

from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Meter:
    def __init__(self) -> None:
        self.total = 0.0


def test_an_object_that_has_a_name_nobody_needs_is_found_by_the_other():
    """A caller's name for what a function got as an argument, say."""

    def program(*, take=None):
        variables, frame = LoopVariables([]), sys._getframe()
        unneeded = Meter()
        needed = unneeded
        variables.changed(frame)
        missing = None
        if take is None:
            needed.total += 2.5
        else:
            missing = variables.load(take, frame)
        told = variables.changed(frame)
        return told, missing, needed.total

    def called(*, take=None):
        mine = Meter()

        def train(meter):
            variables, frame = LoopVariables([]), sys._getframe()
            variables.changed(frame)
            missing = None
            if take is None:
                meter.total += 2.5
            else:
                missing = variables.load(take, frame)
            told = variables.changed(frame)
            return told, missing, meter.total

        return train(mine)

    for each in (program, called):
        told, *_ = each()
        _, missing, total = each(take=unpack_tree(pack_tree(told)))
        assert (missing, total) == ([], 2.5)


class Hub:
    def __init__(self) -> None:
        self.lines = 0


def singleton_of(kind: type) -> type:
    """A class that has one instance, which its metaclass holds."""

    class Singleton(type):
        def __call__(cls):
            return cls.instances.setdefault(cls, super().__call__())

    Singleton.instances = {}
    return Singleton("One", (kind,), {})


class Hook:
    calls = 0

    def run(self) -> None:
        type(self).calls += 1


def made_by(name: str) -> Hook:
    return type(name, (Hook,), {"calls": 0})()


def changed_by(change, *held) -> set[str]:
    """The last names of what changed."""
    variables, frame = LoopVariables([]), sys._getframe()
    variables.changed(frame)
    change()
    found = {path.rpartition(".")[2] for path in variables.changed(frame)}
    assert held  # it is needed on
    return found


def test_what_a_metaclass_holds_is_found():
    one = singleton_of(Hub)

    def change() -> None:
        one().lines += 1

    one()
    assert "lines" in changed_by(change, one)


def test_a_class_without_a_name_is_found_by_its_objects():
    hooks = [made_by("Progress")]
    assert "calls" in changed_by(hooks[0].run, hooks)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """One that pip installed."""
    module = types.ModuleType("hub_of_others")
    module.__file__ = f"{sysconfig.get_path('purelib')}/hub_of_others.py"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    code = """
class Runner:
    pass

class Hub:
    pass

class Buffer:
    def __init__(self):
        self.values = []
"""
    exec(compile(code, module.__file__, "exec"), vars(module))
    return module


def test_an_object_of_a_package_that_is_made_late_is_carried_or_left_out(
    package: types.ModuleType,
) -> None:
    """As deep as the finder looks, and no deeper: a history for each name of a loss, say."""

    def program(*, take=None, looks=2):
        variables, frame = LoopVariables([]), sys._getframe()
        mine = Meter()
        mine.runner = package.Runner()
        mine.runner.hub = package.Hub()
        mine.runner.hub.scalars = {}
        variables.changed(frame)
        if take is None:
            mine.runner.hub.scalars["loss"] = package.Buffer()
            mine.runner.hub.scalars["loss"].values.append(0.5)
            for _ in range(looks - 1):
                variables.changed(frame)
        else:
            variables.load(take, frame)
        told = variables.changed(frame)
        return told, {name: vars(each) for name, each in mine.runner.hub.scalars.items()}

    at_once, _ = program(looks=1)
    assert program(take=unpack_tree(pack_tree(at_once)))[1] == {}
    later, known = program()
    assert known == {"loss": {"values": [0.5]}}
    assert program(take=unpack_tree(pack_tree(later)))[1] == known


class Decay:
    """A schedule for a number that is no learning rate, as in sparse training."""

    def __init__(self) -> None:
        self.sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
        self.stepper = torch.optim.lr_scheduler.CosineAnnealingLR(self.sgd, 50)

    @property
    def rate(self) -> float:
        return float(self.sgd.param_groups[0]["lr"])


def test_what_a_schedule_sets_of_an_optimizer_that_nobody_steps_is_carried() -> None:
    def run(*, take=None):
        variables, frame = LoopVariables([]), sys._getframe()
        decay = Decay()
        variables.changed(frame)
        if take is None:
            for _ in range(7):
                decay.sgd.step()
                decay.stepper.step()
        else:
            assert variables.load(unpack_tree(pack_tree(take)), frame) == []
        told, rate = variables.changed(frame), decay.rate
        decay.stepper.step()
        return told, (rate, decay.rate)

    told, theirs = run()
    assert run(take=told)[1] == theirs
