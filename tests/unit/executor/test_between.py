"""Work between steps that communication broke."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from trainmover_executor.state.training import TrainingState
from trainmover_executor.training.between import BetweenSteps


@pytest.fixture
def latch() -> SimpleNamespace:
    return SimpleNamespace(is_set=False, protecting=nullcontext)


@pytest.fixture
def attempt(latch: SimpleNamespace) -> Callable[[Callable[[], None]], Any]:
    state = TrainingState(models=[nn.Linear(2, 2)], optimizers=[], others={})
    runtime = Mock(latch=latch, saves=Mock(allowing=nullcontext))
    between = BetweenSteps(runtime, state, handover=Mock(committed=3), variables=Mock())

    def run(work: Callable[[], None]) -> Any:
        return between.attempt(work, sys._getframe(), accumulates=False, here=Mock())

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
