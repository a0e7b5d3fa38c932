"""What a program changes in its data set beside numbers: objects, functions, what a list holds."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate

from trainmover_executor.checks.left_behind import LeftBehind
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by


class Flip:
    """Another class than a joiner's data set has there."""


def plain(x: Any) -> Any:
    return x


def flipped(x: Any) -> Any:
    return x


class Data(Dataset[Any]):
    def __init__(self) -> None:
        self.replaced: Any = Scale(1.0)
        self.changed, self.listed = Scale(1.0), [Scale(1.0)]
        self.function: Callable[[Any], Any] = plain
        self.number, self.mode, self.weights = 1.0, "easy", torch.ones(3)
        self.rng, self.draws = random.Random(1), np.random.default_rng(1)
        self.samples: Any = [(f"{at}.png", at) for at in range(2000)]
        self.features, self.images = torch.zeros(9000), [np.zeros(20_000) for _ in range(3)]

    def change(self) -> None:
        self.replaced, self.function, self.number, self.mode = Scale(0.5), flipped, 0.9, "hard"
        self.changed.by = 0.7
        self.listed[0].by = 0.8
        self.weights[1] = 2

    def shown(self) -> Any:
        objects = [self.replaced.by, self.changed.by, [each.by for each in self.listed]]
        return [*objects, self.function, self.number, self.mode, self.weights.tolist()]


def made(data: Data, kind: str) -> Any:
    """What the program has a name for."""
    wrapped = {
        "data": lambda: data,
        "loader": lambda: DataLoader(data),
        "subset": lambda: DataLoader(Subset(data, [1])),
        "concat": lambda: DataLoader(ConcatDataset([ConcatDataset([Empty()]), Holder(data)])),
    }
    return wrapped[kind]()


class Empty(Dataset[Any]):
    def __len__(self) -> int:
        return 1


class Holder(Empty):
    def __init__(self, inner: Data) -> None:
        self.inner = inner


@pytest.mark.parametrize("kind", ["data", "loader", "subset", "concat"])
def test_what_the_program_changes_comes_to_a_joiner(kind: str) -> None:
    def program(told: dict[str, Any] | None, data: list[Data]) -> tuple[dict[str, Any], Any]:
        held, frame = made(data[0], kind), sys._getframe()
        variables = LoopVariables([])
        variables.changed(frame, asks=True)
        if told is None:
            data[0].change()
        else:
            assert [path for path in variables.load(told, frame) if "held" in path] == []
        told = variables.changed(frame, asks=True)
        assert held is not None
        return unpack_tree(pack_tree(told)), data[0].shown()

    told, there = program(None, [Data()])
    assert not any("rng" in path or "draws" in path or "samples" in path for path in told)
    _, here = program(told, [Data()])
    assert here == there


def looks(change: Callable[[Data], None], *, data: Data | None = None) -> dict[str, str]:
    """What the log says of a change: variables and what they hold."""
    data = data or Data()
    loader, left, variables = DataLoader(data), LeftBehind(), LoopVariables([])
    frame: FrameType = sys._getframe()
    with structlog.testing.capture_logs() as logs:
        for each in (lambda _: None, change):
            each(data)
            passed = variables.passed_over(frame)
            left.look(passed, frame, memory=(), was_plain=variables.was_plain)
    assert loader is not None
    return {line["variable"].rpartition(".")[2]: line["holds"] for line in logs}


def test_what_cannot_be_carried_is_said() -> None:
    def other(data: Data) -> None:
        data.function = lambda x: x
        data.samples = data.samples[:1500]
        data.features[0] = 1.0
        data.images[1][0] = 1.0

    data = Data()
    data.function = lambda x: x + 1
    assert looks(other, data=data) == {
        "function": "a function",
        "samples": "a list of 1500 items",
        "features": "a tensor of shape (9000,)",
        "images[1]": "a ndarray of 20000 items",
    }


def test_an_object_of_a_package_that_is_replaced_is_said() -> None:
    data = Data()
    data.replaced = structlog.testing.LogCapture()

    def other(data: Data) -> None:
        data.replaced = structlog.testing.CapturingLogger()

    assert looks(other, data=data) == {"replaced": "a CapturingLogger"}
    data.replaced = structlog.testing.LogCapture()
    assert looks(lambda _: None, data=data) == {}


def test_another_class_comes_in_the_place_of_an_object() -> None:
    def program(told: dict[str, Any] | None) -> tuple[dict[str, Any], Data]:
        data, frame, variables = Data(), sys._getframe(), LoopVariables([])
        variables.changed(frame, asks=True)
        if told is None:
            data.replaced = Flip()
        else:
            variables.load(told, frame)
        return unpack_tree(pack_tree(variables.changed(frame, asks=True))), data

    told, _ = program(None)
    assert type(program(told)[1].replaced) is Flip


def test_a_function_that_makes_batches_is_carried() -> None:
    loader, frame, variables = DataLoader(Empty()), sys._getframe(), LoopVariables([])
    variables.changed(frame, asks=True)
    loader.collate_fn = flipped
    told = variables.changed(frame, asks=True)
    loader.collate_fn = default_collate
    variables.load(told, frame)
    assert loader.collate_fn is flipped


def test_a_data_set_of_many_objects_leaves_room_for_others() -> None:
    class Record:
        def __init__(self) -> None:
            self.tags = [Scale(1.0)]

    data = Data()
    data.samples = [{"a": [Record() for _ in range(100)]} for _ in range(100)]
    later, frame, variables = Scale(1.0), sys._getframe(), LoopVariables([])
    variables.changed(frame)
    later.by = 2.0
    assert [path for path in variables.changed(frame) if path.endswith("later.by")]
    assert data.samples
    assert later


def test_what_a_data_set_refers_to_is_looked_at_as_ever_where_the_program_has_a_name_for_it() -> (
    None
):
    """Its trainer, say, which keeps large tensors."""

    class Trainer:
        def __init__(self) -> None:
            self.best = torch.zeros(9000)

    data = Data()
    trainer = data.replaced = Trainer()
    frame, variables = sys._getframe(), LoopVariables([])
    variables.changed(frame, asks=True)
    trainer.best = torch.ones(9000)
    assert any(path.endswith("trainer.best") for path in variables.changed(frame, asks=True))
    assert data
    assert trainer
