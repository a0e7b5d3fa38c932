"""Values that a program asked to have carried: attributes that are part of the state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from trainmover.errors import ConfigError
from trainmover_executor.checks.portable import check_others
from trainmover_executor.program.tracked import TrackedValues
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.training import TrainingState


def state_with(values: TrackedValues) -> TrainingState:
    return TrainingState(models=[], optimizers=[], others={"tracked": values})


def test_an_aborted_step_puts_them_back() -> None:
    values = TrackedValues()
    counters = values.add({"global_step": 0, "best": float("inf"), "queue": torch.zeros(9000)})
    queue = counters.queue
    start = StepStart(state_with(values))
    start.capture(0)
    counters.global_step += 1
    counters.best = 0.25
    counters.queue += 1
    start.restore()
    assert (counters.global_step, counters.best) == (0, float("inf"))
    assert counters.queue is queue
    assert not queue.any()


def test_a_joiner_has_those_of_the_job() -> None:
    def program() -> tuple[Any, Any, TrainingState]:
        values = TrackedValues()
        first = values.add({"global_step": 0, "history": []})
        second = values.add({"seen": {}})
        return first, second, state_with(values)

    first, second, state = program()
    first.global_step += 7
    first.history.append((1, 0.5))
    second.seen["a"] = 1.0
    joined, also, joiner = program()
    joined.global_step = 3
    joiner.load(copy.deepcopy(state.tree()))
    assert (joined.global_step, joined.history, also.seen) == (7, [(1, 0.5)], {"a": 1.0})
    assert joiner.digest() == state.digest()


def test_they_come_back_as_they_were() -> None:
    values = TrackedValues()
    values.add({"a": 1, "b": torch.ones(3), "c": [1, {"d": None}], "e": {1, 2}})
    check_others({"tracked": values})
    assert repr(values.state_dict()["c"]) == "[1, {'d': None}]"


def test_a_name_is_taken_once() -> None:
    values = TrackedValues()
    values.add({"a": 1})
    with pytest.raises(ConfigError, match=r"track\(a=\.\.\.\): this name is tracked already"):
        values.add({"b": 1, "a": 2})
    assert values.state_dict() == {"a": 1}


def test_what_cannot_be_carried_is_refused_at_once() -> None:
    values = TrackedValues()
    with pytest.raises(ConfigError, match=r"track\(hook=\.\.\.\) cannot be carried: state at /hoo"):
        values.add({"hook": print})
    held = values.add({"hook": None})
    with pytest.raises(ConfigError, match="cannot be carried"):
        held.hook = print
    assert held.hook is None


def test_after_the_first_steps_it_is_too_late() -> None:
    values = TrackedValues()
    values.sealed = True
    with pytest.raises(ConfigError, match=r"in front of the first session\.steps"):
        values.add({"a": 1})


def test_a_name_that_is_not_tracked_is_an_error() -> None:
    held = TrackedValues().add({"a": 1})
    with pytest.raises(AttributeError, match=r"begin with session\.track\(b="):
        held.b = 2
    with pytest.raises(AttributeError, match="'b' is not tracked"):
        _ = held.b
    assert repr(held) == "Tracked(a=1)"
