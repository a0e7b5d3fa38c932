"""What a session cannot carry is said at once, with its name, the key and the cure."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trainmover.errors import ConfigError
from trainmover_executor.checks.portable import check_others, check_state, register
from trainmover_executor.state.training import TrainingState


class Extra:
    """Gives what it holds, and takes it back, but for what a test changes."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values.clear()
        self.values.update(state)


class TestExtras:
    def test_what_comes_back_as_it_was_is_left_as_it_was(self) -> None:
        average = torch.tensor([1.0, float("nan")])
        extra = Extra(average=average, best=float("inf"), seen={"a": [1, (2, None)]}, ids={3, 1})
        check_others({"extra": extra})
        assert extra.values["average"] is average
        assert extra.values["seen"] == {"a": [1, (2, None)]}
        assert extra.values["ids"] == {1, 3}

    def test_what_only_pickle_could_carry_is_named(self) -> None:
        extra = Extra(inner={"lock": threading.Lock()})
        with pytest.raises(
            ConfigError, match=r"'ema' \(Extra\).* at /inner/lock is a .*lock.*Make"
        ):
            check_others({"ema": extra})

    def test_what_is_not_taken_back_is_named(self) -> None:
        class Forgets(Extra):
            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.values = {**state, "inner": [1, 0]}

        with pytest.raises(ConfigError, match=r"'meter' \(Forgets\).*another one at /inner/1\. Ma"):
            check_others({"meter": Forgets(inner=[1, 2])})

    def test_a_key_that_appears_is_named(self) -> None:
        class Adds(Extra):
            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.values = {**state, "loaded": True}

        with pytest.raises(ConfigError, match="at /loaded"):
            check_others({"meter": Adds(sum=1.0)})

    def test_what_does_not_load_is_told_with_its_error(self) -> None:
        class Refuses(Extra):
            def load_state_dict(self, state: dict[str, Any]) -> None:
                raise KeyError("version")

        with pytest.raises(ConfigError, match=r"does not take .*KeyError: 'version'"):
            check_others({"meter": Refuses(sum=1.0)})

    def test_a_tensor_of_a_type_that_is_not_carried_is_named(self) -> None:
        extra = Extra(scale=torch.zeros(2).to(torch.float8_e4m3fn))
        with pytest.raises(ConfigError, match=r"tensor at /scale \(float8_e4m3fn, strided\)"):
            check_others({"meter": extra})

    @pytest.mark.parametrize(
        "make",
        [
            lambda o: lr_scheduler.StepLR(o, 2),
            lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
            lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
            lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2),
            lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
            lr_scheduler.ReduceLROnPlateau,
            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
            lambda o: lr_scheduler.SequentialLR(
                o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
            ),
            lambda o: lr_scheduler.ChainedScheduler(
                [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], o
            ),
            lambda _: torch.amp.GradScaler("cpu"),
            lambda _: torch.amp.GradScaler("cpu", enabled=False),
            lambda _: torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2)),
        ],
    )
    def test_what_torch_has_comes_back(self, make: Any) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        other = make(optimizer)
        optimizer.step()
        before = repr(other.state_dict())
        check_others({"other": other})
        assert repr(other.state_dict()) == before


class TestState:
    def make(self, optimizer: type[torch.optim.Optimizer], **settings: Any) -> TrainingState:
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        return TrainingState(
            models=[model], optimizers=[optimizer(model.parameters(), **settings)], others={}
        )

    def test_torchs_optimizers_pass_before_and_after_a_step(self) -> None:
        for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor):
            state = self.make(kind)
            check_state(state)
            state.optimizers[0].step()
            check_state(state)

    def test_what_an_optimizer_adds_in_its_step_is_named(self) -> None:
        class Odd(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                super().step(closure)
                for group in self.param_groups:
                    for parameter in group["params"]:
                        self.state[parameter]["hook"] = print

        state = self.make(Odd)
        check_state(state)
        state.optimizers[0].step()
        with pytest.raises(ConfigError, match=r"optimizer 0 \(Odd\).* at /state/.* 0/hook is a "):
            check_state(state)

    def test_a_setting_that_cannot_be_carried_is_named(self) -> None:
        state = self.make(torch.optim.SGD)
        state.optimizers[0].param_groups[0]["filter"] = object()
        with pytest.raises(ConfigError, match=r"at /groups/0/filter is a builtins.object"):
            check_state(state)

    def test_a_function_that_is_a_setting_is_each_ranks_own(self) -> None:
        state = self.make(torch.optim.SGD)
        state.optimizers[0].param_groups[0]["filter"] = lambda _: True
        check_state(state)

    def test_a_buffer_of_a_type_that_is_not_carried_is_named(self) -> None:
        state = self.make(torch.optim.SGD)
        state.models[0].register_buffer("scale", torch.zeros(2).to(torch.float8_e5m2))
        with pytest.raises(ConfigError, match=r"model 0 \(Linear\).*at /scale"):
            check_state(state)


class Runtime(SimpleNamespace):
    __hash__ = object.__hash__


def test_a_program_has_one_session() -> None:
    one: Any = Runtime()
    other: Any = Runtime()
    register(one)
    register(other)
    with pytest.raises(ConfigError, match=r"has a Session already.*all models and optimizers"):
        register(one)
