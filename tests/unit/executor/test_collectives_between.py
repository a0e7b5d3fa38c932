"""Which collectives are work between steps, and that they may be done twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainmover_executor.state.training import TrainingState
from trainmover_executor.training import between as module
from trainmover_executor.training.between import Collectives

WORLD = (0, 1, 2)


class Program:
    """One rank's, with a pretended sum over three."""

    def __init__(self) -> None:
        self.model = nn.BatchNorm1d(4)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.calls: Any = SimpleNamespace(began=True, in_body=False)
        self.attempts, self.told, self.asked = 1, ..., 0
        self.is_shadow = False
        self.collectives = Collectives(
            TrainingState(models=[self.model], optimizers=[optimizer], others={}),
            world_size=len(WORLD),
            calls=self.calls,
            between=self.between,
            is_shadow=lambda: self.is_shadow,
        )

    def between(self, work: Callable[[], list[torch.Tensor]], _: object) -> Any:
        self.asked += 1
        for _attempt in range(self.attempts):
            done = work()
        if self.told is ...:
            return done
        return self.told

    def sum(self, tensor: torch.Tensor, *, ranks: tuple[int, ...] = WORLD) -> bool:
        return self.collectives.do(ranks, [tensor], lambda: tensor.detach().mul_(len(ranks)))


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr(module, "calls_collective", lambda frame: frame)
    return Program()


def test_a_sum_of_all_ranks_is_one(program: Program) -> None:
    metric = torch.tensor([1.0, 2.0])
    assert program.sum(metric)
    assert metric.tolist() == [3.0, 6.0]


def test_an_attempt_begins_with_what_was_given(program: Program) -> None:
    program.attempts = 3
    metric = torch.tensor([1.0, 2.0])
    assert program.sum(metric)
    assert metric.tolist() == [3.0, 6.0]


def test_a_joiner_has_what_the_dead_ranks_returned(program: Program) -> None:
    program.attempts, program.told = 0, [torch.tensor([7.0])]
    metric = torch.tensor([1.0])
    assert program.sum(metric)
    assert metric.item() == 7.0


def test_a_standby_that_is_told_nothing_has_its_own(program: Program) -> None:
    program.attempts, program.told = 0, None
    metric = torch.tensor([1.0])
    assert program.sum(metric)
    assert metric.item() == 3.0


def test_tensors_of_an_inference_are_written_to(program: Program) -> None:
    program.attempts = 2
    with torch.inference_mode():
        metric = torch.tensor([1.0])
        assert program.sum(metric)
        assert metric.item() == 3.0


def statistics(program: Program) -> torch.Tensor:
    """A buffer of the model, as averaged between two epochs."""
    mean = program.model.running_mean
    assert mean is not None
    return mean


def test_statistics_of_the_model_are_averaged_again_from_where_they_were(program: Program) -> None:
    program.attempts = 2
    statistics(program).fill_(2.0)
    assert program.sum(statistics(program))
    assert statistics(program).tolist() == [6.0] * 4


def test_a_joiner_begins_with_the_statistics_of_the_job(program: Program) -> None:
    def takes_over(work: Callable[[], list[torch.Tensor]], _: object) -> Any:
        program.is_shadow = False
        statistics(program).fill_(5.0)
        return work()

    program.is_shadow = True
    program.collectives._between = takes_over
    assert program.sum(statistics(program))
    assert statistics(program).tolist() == [15.0] * 4


@pytest.mark.parametrize(
    "why",
    ["a part of the ranks", "large", "weights", "sparse", "a body", "no step yet"],
)
def test_others_are_not(why: str, program: Program) -> None:
    metric, ranks = torch.tensor([1.0]), WORLD
    match why:
        case "a part of the ranks":
            ranks = (0, 1)
        case "large":
            metric = torch.zeros(300_000)
        case "weights":
            metric = program.model.weight.data[1:]
        case "sparse":
            metric = torch.eye(2).to_sparse()
        case "a body":
            program.calls.in_body = True
        case "no step yet":
            program.calls.began = False
    assert not program.sum(metric, ranks=ranks)
    assert program.asked == 0


def test_memory_that_a_parameter_has_left_is_a_metrics(program: Program) -> None:
    """Else one rank would do it as work between steps, and wait for another that does not."""
    metric = torch.tensor([1.0])
    weight = program.model.weight
    left = weight.data
    assert program.sum(metric)
    weight.data = torch.ones(4)
    assert program.sum(left)


def test_those_of_another_thread_are_not(program: Program) -> None:
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(program.sum(torch.tensor([1.0]))))
    thread.start()
    thread.join()
    assert done == [False]


@pytest.mark.parametrize(
    ("module_name", "file", "is_work"),
    [
        ("torch.distributed.distributed_c10d", "torch/distributed/distributed_c10d.py", True),
        ("torch.optim.averaging", "torch/optim/averaging.py", False),
        ("trainer.loop", "trainer/loop.py", False),
    ],
)
def test_those_that_a_library_calls_are_not(module_name: str, file: str, *, is_work: bool) -> None:
    program = Program()
    code = compile(
        "def average(metric): return do((0, 1, 2), [metric], lambda: None)",
        f"/x/site-packages/{file}",
        "exec",
    )
    names: dict[str, Any] = {"__name__": module_name, "do": program.collectives.do}
    exec(code, names)
    assert names["average"](torch.tensor([1.0])) == is_work
