"""Work between steps that communication broke."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from trainmover_executor.moves.joining.coming import NOWHERE
from trainmover_executor.state.training import TrainingState
from trainmover_executor.training.between import BetweenSteps
from trainmover_executor.training.body.attempt import StepLostError


@pytest.fixture
def latch() -> SimpleNamespace:
    return SimpleNamespace(is_set=False, protecting=nullcontext, reason="rank 1 is gone")


@pytest.fixture
def model() -> nn.Linear:
    return nn.Linear(2, 2)


@pytest.fixture
def attempt(latch: SimpleNamespace, model: nn.Linear) -> Callable[[Callable[[], None]], Any]:
    state = TrainingState(models=[model], optimizers=[], others={})
    runtime = Mock(latch=latch, saves=Mock(allowing=nullcontext))
    runtime.decisions.state.between = 0
    between = BetweenSteps(runtime, state, handover=Mock(committed=3), variables=Mock())

    def run(work: Callable[[], None]) -> Any:
        return between.attempt(work, sys._getframe(), accumulates=False, here=lambda: NOWHERE)

    return run


def raises(error: BaseException, latch: SimpleNamespace, *, broken: bool) -> Callable[[], None]:
    def work() -> None:
        latch.is_set = broken
        raise error

    return work


@pytest.mark.parametrize("error", [ValueError("lost"), CheckpointException("save", {})])
def test_what_it_raises_then_is_a_consequence(
    error: BaseException, attempt: Any, latch: SimpleNamespace
) -> None:
    """Torch's error of a checkpoint is none of ``Exception``: rank 0 gathers plans that are not."""
    assert attempt(raises(error, latch, broken=True)) == (None, None)


@pytest.mark.parametrize("error", [ValueError("mine"), CheckpointException("save", {})])
def test_what_it_raises_otherwise_is_the_programs(
    error: BaseException, attempt: Any, latch: SimpleNamespace
) -> None:
    with pytest.raises(type(error)):
        attempt(raises(error, latch, broken=False))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_who_ends_the_program_ends_it(
    error: BaseException, attempt: Any, latch: SimpleNamespace
) -> None:
    with pytest.raises(type(error)):
        attempt(raises(error, latch, broken=True))


def writes(model: nn.Linear, latch: SimpleNamespace, *, broken: bool) -> Callable[[], None]:
    def work() -> None:
        latch.is_set = broken
        with torch.no_grad():
            model.weight += 1

    return work


def test_parameters_that_it_wrote_to_are_put_back(
    attempt: Any, latch: SimpleNamespace, model: nn.Linear
) -> None:
    weight = model.weight.detach().clone()
    assert attempt(writes(model, latch, broken=True)) == (None, None)
    assert torch.equal(model.weight, weight)


def test_who_writes_late_ends_the_job(
    attempt: Any, latch: SimpleNamespace, model: nn.Linear
) -> None:
    works = iter((lambda: None, writes(model, latch, broken=True)))
    with pytest.raises(StepLostError, match=r"test_between\.py:\d+ broke .*first time"):
        deque(map(attempt, works))  # the first writes to none: none are kept the next time


def test_who_has_written_is_kept_from_then_on(
    attempt: Any, latch: SimpleNamespace, model: nn.Linear
) -> None:
    for work in (lambda: None, *[writes(model, latch, broken=each) for each in (False, True)]):
        weight = model.weight.detach().clone()
        attempt(work)
    assert torch.equal(model.weight, weight)


def test_without_memory_for_a_copy_it_works_all_the_same(
    attempt: Any, model: nn.Linear, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def large(state: TrainingState) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(TrainingState, "large", large)
    done, result = attempt(lambda: 7)
    assert (done is not None, result) == (True, 7)
    assert "no memory is left" in capsys.readouterr().out
