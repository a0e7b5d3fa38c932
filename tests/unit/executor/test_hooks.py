"""What hooks keep that a program registered with its models, parameters and optimizers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import structlog
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from trainmover_executor.checks.left_behind import LeftBehind
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Count:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: Any) -> None:
        self.calls += 1

    def method(self, *_: Any) -> None:
        self.calls += 1


def closure() -> tuple[Callable[..., None], Callable[[], int]]:
    calls = 0

    def hook(*_: Any) -> None:
        nonlocal calls
        calls += 1

    return torch.no_grad()(hook), lambda: calls


class Training:
    """A model and an optimizer with hooks that nothing else names."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.hooks: dict[str, Callable[[], int]] = {}
        first, second = self.model[0], self.model[1]
        hook, self.hooks["closure"] = closure()
        first.register_forward_hook(hook)
        for name, register in {
            "pre": second.register_forward_pre_hook,
            "backward": second.register_full_backward_hook,
            "tensor": first.weight.register_hook,
            "accumulated": second.bias.register_post_accumulate_grad_hook,
            "step pre": self.optimizer.register_step_pre_hook,
            "step post": self.optimizer.register_step_post_hook,
            "state": self.model.register_state_dict_pre_hook,
            "load": self.model.register_load_state_dict_pre_hook,
        }.items():
            count = Count()
            register(count)
            self.hooks[name] = lambda count=count: count.calls
        count, default = Count(), Count()
        first.register_forward_hook(count.method)
        self.hooks["method"] = lambda: count.calls
        first.register_forward_hook(lambda *_, count=default: count())
        self.hooks["default"] = lambda: default.calls

    def step(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        self.model.load_state_dict(self.model.state_dict())

    def counts(self) -> dict[str, int]:
        return {name: count() for name, count in self.hooks.items()}


def looked_at(training: Training) -> LoopVariables:
    return LoopVariables([], models=[training.model], optimizers=[training.optimizer])


def run(told: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, int]]:
    training = Training()
    variables = looked_at(training)
    variables.changed(None)
    missing = []
    if told is None:
        training.step()
        training.step()
    else:
        missing = variables.load(told, None)
    assert not missing
    return unpack_tree(pack_tree(variables.changed(None))), training.counts()


def test_what_hooks_keep_comes_to_a_joiner() -> None:
    told, there = run(None)
    assert set(there.values()) == {2}
    _, here = run(told)
    assert here == there


def test_what_hooks_did_in_an_aborted_step_is_taken_back() -> None:
    training = Training()
    variables = looked_at(training)
    training.step()
    variables.keep(None)
    training.step()
    variables.put_back(None)
    assert set(training.counts().values()) == {1}


def test_hooks_of_torch_and_of_this_package_are_not_looked_into() -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    model.register_forward_hook(nn.Module.type)
    model.register_forward_pre_hook(structlog.testing.LogCapture())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not LoopVariables([], models=[model], optimizers=[optimizer]).changed(None)
    variables = LoopVariables([], models=[model], optimizers=[optimizer])
    assert not [path for path, _ in variables.passed_over(None) if "_hooks[" in path]


def test_hooks_of_all_modules_and_optimizers_are_found() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    variables = LoopVariables([], models=[model], optimizers=[optimizer])
    handles = [
        register_module_forward_hook(Count()),
        register_optimizer_step_post_hook(Count()),
    ]
    variables.changed(None)
    model(torch.ones(1, 2))
    optimizer.step()
    told = variables.changed(None)
    for handle in handles:
        handle.remove()
    assert {path: tree for path, tree in told.items() if path.endswith(".calls")} == {
        "torch.nn.modules.module._global_forward_hooks[0].calls": 1,
        "torch.optim.optimizer._global_optimizer_post_hooks[0].calls": 1,
    }


def test_hooks_of_a_module_that_comes_later_are_found() -> None:
    model, count, other = nn.Sequential(nn.Sequential(nn.Linear(2, 2))), Count(), Count()
    came = nn.Linear(2, 2)
    came.register_forward_hook(count)
    variables = LoopVariables([], models=[model])
    variables.changed(None, asks=True)
    model[0][0] = came
    variables.changed(None, asks=True)
    came.register_forward_pre_hook(other)
    variables.changed(None)
    came(torch.ones(1, 2))
    hooks = ("_forward_hooks[0].calls", "_forward_pre_hooks[0].calls")
    assert {f"session.model[0].0.0.{each}" for each in hooks} <= variables.changed(None).keys()


def test_a_hook_that_is_registered_while_the_program_trains_is_said() -> None:
    model, left, frame = nn.Linear(2, 2), LeftBehind(), sys._getframe()
    variables = LoopVariables([], models=[model])

    def look() -> list[str]:
        return left.look(variables.passed_over(None), frame, memory=())

    assert look() == look() == []
    model.register_forward_hook(Count())
    with structlog.testing.capture_logs() as logs:
        assert look() == ["session.hooks"]
    assert "in front of the first step" in logs[0]["cure"]


@pytest.mark.parametrize("is_known", [True, False])
def test_what_a_function_keeps_that_gives_a_learning_rate_comes_to_a_joiner(is_known: bool) -> None:
    def program(told: dict[str, Any] | None) -> tuple[dict[str, Any], int]:
        calls, frame = 0, sys._getframe()

        def made() -> tuple[Callable[[int], float], Callable[[], int]]:
            calls = 0

            def warm_up(_: int) -> float:
                nonlocal calls
                calls += 1
                return calls / 100

            return warm_up, lambda: calls

        warm_up, shown = made()
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)
        del warm_up
        variables = LoopVariables([scheduler] if is_known else [])
        variables.changed(None if is_known else frame, asks=True)
        if told is None:
            optimizer.step()
            scheduler.step()
        else:
            variables.load(told, None if is_known else frame)
        told = variables.changed(None if is_known else frame, asks=True)
        assert scheduler
        return unpack_tree(pack_tree(told)), shown() + calls

    told, there = program(None)
    assert there == 2
    assert program(told)[1] == 2
