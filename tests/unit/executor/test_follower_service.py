"""What a rank says of its own redundancy, without links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.fabric import membership
from torch import nn

from trainmover.events.executor import JobLayoutKnown
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.state.training import TrainingState


@pytest.fixture
def said() -> list[JobLayoutKnown]:
    return []


@pytest.fixture
def service(said: list[JobLayoutKnown]) -> FollowerService:
    model = nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1)]
    runtime: Any = SimpleNamespace(
        rank=1,
        membership=membership(3),
        spec=SimpleNamespace(redundancy="auto", machine="m1"),
        report=said.append,
    )
    return FollowerService(runtime, TrainingState(models=[model], optimizers=optimizers, others={}))


def test_several_steps_within_one_vote_are_not_followed(
    service: FollowerService, said: list[JobLayoutKnown]
) -> None:
    """The follower heard of the first one alone, and would hand over what it made of it."""
    service.protect()
    assert service.still_followed()
    service.strayed()
    service.strayed()
    assert not service.still_followed()
    assert [one.redundancy for one in said] == ["follower", "checkpoint"]
    assert said[-1].obstacle == "its optimizer takes several steps within one vote"


def test_gradients_that_change_behind_an_optimizers_step_are_not_followed(
    service: FollowerService, said: list[JobLayoutKnown]
) -> None:
    """With a vote at the end of the body, the follower is told of the moment in front of it."""
    gradients = [torch.ones(2, 2), torch.ones(2)]
    state = service._state
    for parameter, gradient in zip(state.parameters(), gradients, strict=True):
        parameter.grad = gradient
    service.protect()
    service.note(step=1)
    assert service.still_followed()
    gradients[0].add_(1)
    assert not service.still_followed()
    assert said[-1].obstacle == "its gradients are changed behind the optimizer's step"


def test_work_between_steps_that_leaves_other_parameters_is_not_followed(
    service: FollowerService, said: list[JobLayoutKnown]
) -> None:
    """Nobody does it again: it may take long, and its collectives belong to all ranks."""
    service.protect()
    service.stepped()
    parameter = next(iter(service._state.parameters()))
    with torch.no_grad():
        parameter.add_(1)
    assert service.written_between().keys() == {"0:weight"}
    service.worked()
    assert service.still_followed()
    with torch.no_grad():
        parameter.add_(1)
    service.worked()
    assert not service.still_followed()
    assert "session.between_steps() wrote to 0:weight" in said[-1].obstacle


def test_an_attempt_forgets_what_was_noted_in_the_one_before(service: FollowerService) -> None:
    parameter = next(iter(service._state.parameters()))
    parameter.grad = torch.ones(2, 2)
    service.protect()
    service.note(step=1)
    service.begin_attempt(redone=True)
    parameter.grad.add_(1)
    assert service.still_followed()
