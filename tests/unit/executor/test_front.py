"""Between being given a step and its body a joiner does again what the job has done."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainmover.errors import ProtocolError
from trainmover_executor.moves.joining import front as module
from trainmover_executor.moves.joining.front import Front
from trainmover_executor.state.training import TrainingState


class Joiner:
    """A model with a buffer, an average of it, and what the job handed over."""

    def __init__(self) -> None:
        self.model = nn.BatchNorm1d(3)
        self.average = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state = TrainingState(
            models=[self.model], optimizers=[self.optimizer], others={"average": self.average}
        )
        self.took_gradients = 0

    def front(self, *, writes: bool = False) -> Front:
        return Front(self.state, given=None, step=7, writes=writes, take_gradients=self._take)

    def _take(self) -> None:
        self.took_gradients += 1

    @torch.no_grad()
    def code_in_front(self) -> None:
        self.model.weight.mul_(0.5)
        self.average.weight.data.add_(1.0)  # leaves no version behind
        self.model.running_mean.add_(1.0)  # type: ignore[operator]
        self.optimizer.param_groups[0]["lr"] *= 0.5


def test_what_was_written_in_front_of_the_body_is_as_it_was_given() -> None:
    joiner = Joiner()
    weight, average = joiner.model.weight.clone(), joiner.average.weight.clone()
    front = joiner.front()
    joiner.code_in_front()
    front.body_begins()
    assert torch.equal(joiner.model.weight, weight)
    assert torch.equal(joiner.average.weight, average)
    assert joiner.took_gradients == 1


def test_buffers_and_settings_are_the_programs() -> None:
    joiner = Joiner()
    front = joiner.front()
    joiner.code_in_front()
    front.body_begins()
    assert joiner.model.running_mean is not None
    assert joiner.model.running_mean.tolist() == [1.0, 1.0, 1.0]
    assert joiner.optimizer.param_groups[0]["lr"] == 0.05


def test_a_program_that_writes_nothing_there_keeps_all() -> None:
    joiner = Joiner()
    front = joiner.front()
    joiner.optimizer.param_groups[0]["lr"] = 0.3
    front.body_begins()
    assert joiner.optimizer.param_groups[0]["lr"] == 0.3
    assert joiner.took_gradients == 0


def test_large_state_is_kept_where_shadow_iterations_wrote_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SMALL_BYTES", 0)
    joiner = Joiner()
    weight = joiner.model.weight.clone()
    front = joiner.front(writes=True)
    joiner.code_in_front()
    front.body_begins()
    assert torch.equal(joiner.model.weight, weight)


def test_a_write_to_large_state_that_nobody_foresaw_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SMALL_BYTES", 0)
    joiner = Joiner()
    front = joiner.front()
    joiner.code_in_front()
    with pytest.raises(ProtocolError, match=r"writes to parameters between 'for step"):
        front.body_begins()
