"""An attempt at a body: where it votes, and what ends the job instead of going on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainmover_executor.position.placement import Placement
from trainmover_executor.state.training import TrainingState
from trainmover_executor.training.body.attempt import Attempt, StepLostError
from trainmover_executor.training.body.step import StepAborted


class Body:
    """One rank's attempts, with a vote that says ``passes``."""

    def __init__(self, *, at_end: bool = False, passes: bool = True) -> None:
        model = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model = model
        self.latch = SimpleNamespace(
            issued=0, stand_ins=0, is_set=False, protected=False, reason="rank 1 is gone"
        )
        self.sandboxed = False
        self.decisions = SimpleNamespace(state=SimpleNamespace(votes_at_end=at_end))
        runtime = SimpleNamespace(
            latch=self.latch,
            decisions=self.decisions,
            enter_sandbox=lambda: setattr(self, "sandboxed", True),
            leave_sandbox=lambda: setattr(self, "sandboxed", False),
        )
        state = TrainingState(models=[model], optimizers=[self.optimizer], others={})
        self.attempt = Attempt(runtime, state, placement=Placement())
        self.votes = 0
        self.passes = passes
        self.step = SimpleNamespace(index=7, committed=False, cast_vote=self._vote)

    def _vote(self) -> bool:
        self.votes += 1
        self.attempt.voting()
        self.step.committed = self.passes
        return self.passes

    def begin(self, *, catches_up: bool = False) -> None:
        self.attempt.begin(self.step, catches_up=catches_up)

    def backward(self) -> None:
        self.latch.issued += 1
        self.model(torch.ones(1, 2)).sum().backward()

    def take_step(self) -> None:
        self.attempt.before_optimizer(self.step)
        self.optimizer.step()

    def end(self) -> None:
        if not self.votes:
            self._vote()
        self.attempt.end(self.step, kept=False)


def test_the_vote_is_in_front_of_the_optimizer():
    body = Body()
    body.begin()
    body.backward()
    body.take_step()
    assert body.votes == 1
    body.end()
    assert not body.attempt.placement.wants_the_end(at_end=False)
    assert not body.attempt.accumulates


def by_hand(body: Body) -> None:
    """What a program does that has no optimizer."""
    for parameter in body.model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)


def test_parameters_that_are_changed_by_hand_need_the_end():
    body = Body()
    body.begin()
    body.backward()
    by_hand(body)
    body.end()
    assert body.attempt.placement.wants_the_end(at_end=False)
    assert "changes parameters" in body.attempt.because


def test_a_broken_step_that_has_changed_them_by_hand_is_lost():
    body = Body(passes=False)
    body.begin()
    body.backward()
    by_hand(body)
    with pytest.raises(StepLostError, match="changed parameters in front of the optimizer"):
        body.end()


def test_a_change_by_hand_behind_bodies_that_accumulate_is_seen():
    body = Body()
    for at in range(6):
        body.votes = 0
        body.begin()
        body.backward()
        if at == 5:
            by_hand(body)
        body.end()
    assert body.attempt.placement.wants_the_end(at_end=False)


def test_a_body_that_accumulates_changes_nothing():
    body = Body()
    body.begin()
    body.backward()
    body.end()
    assert not body.attempt.placement.wants_the_end(at_end=False)
    assert body.attempt.accumulates


def test_an_aborted_step_does_not_reach_the_optimizer():
    body = Body(passes=False)
    body.begin()
    body.backward()
    before = body.model.weight.clone()
    with pytest.raises(StepAborted):
        body.take_step()
    body.end()
    assert torch.equal(body.model.weight, before)


def test_at_the_end_the_optimizer_goes_first():
    body = Body(at_end=True)
    body.begin()
    body.backward()
    body.take_step()
    assert body.votes == 0
    body.end()
    assert body.votes == 1


def test_at_the_end_a_broken_body_is_left_in_front_of_the_optimizer():
    body = Body(at_end=True)
    body.begin()
    body.latch.is_set = True
    with pytest.raises(StepAborted):
        body.take_step()


@pytest.mark.parametrize("shape", ["communicates behind it", "changes in front of it"])
def test_a_body_that_needs_the_end_asks_for_it(shape):
    body = Body()
    body.begin()
    body.backward()
    if shape == "changes in front of it":
        with torch.no_grad():
            body.model.weight.add_(1)
    body.take_step()
    if shape == "communicates behind it":
        body.latch.issued += 1
    body.end()
    assert body.attempt.placement.wants_the_end(at_end=False)


def test_a_break_behind_a_change_that_was_not_kept_is_an_error():
    body = Body(passes=False)
    body.begin()
    with torch.no_grad():
        body.model.weight.add_(1)
    with pytest.raises(StepAborted):
        body.take_step()
    with pytest.raises(StepLostError, match=r"step 7 broke \(rank 1 is gone\)"):
        body.end()


def test_stand_ins_behind_a_committed_step_are_an_error():
    body = Body()
    body.begin()
    body.backward()
    body.take_step()
    body.latch.stand_ins += 1
    with pytest.raises(StepLostError, match="behind its optimizer's step"):
        body.end()


def test_a_body_without_an_optimizer_accumulates_gradients():
    body = Body()
    body.begin()
    body.backward()
    assert body.attempt.accumulating
    body.end()
    assert body.attempt.accumulates


def test_an_attempt_that_catches_up_is_over_with_its_body():
    body = Body(passes=False)
    body.begin(catches_up=True)
    assert body.sandboxed
    body.attempt.end(body.step, kept=False)
    assert not body.sandboxed
    assert (body.attempt.in_sandbox, body.attempt.was_in_sandbox) == (False, True)
    assert body.attempt.is_redone(body.step)
