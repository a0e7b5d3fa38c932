"""What a rank says of its own redundancy, without links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.fabric import membership
from torch import nn

from trainmover.events.executor import JobLayoutKnown
from trainmover_executor.redundancy.follower import Follower, NotFollowedError
from trainmover_executor.redundancy.service import FollowerService
from trainmover_executor.state.packing.portable import PartedTree
from trainmover_executor.state.training import TrainingState


@pytest.fixture
def said() -> list[JobLayoutKnown]:
    return []


@pytest.fixture
def service(said: list[JobLayoutKnown]) -> FollowerService:
    model = nn.Linear(2, 2)
    return made(said, [model], [torch.optim.SGD(model.parameters(), 0.1)])


def made(
    said: list[JobLayoutKnown],
    models: list[nn.Module],
    optimizers: list[torch.optim.Optimizer],
    *,
    sent: list[Any] | None = None,
) -> FollowerService:
    """That of rank 1 of 3; what it would send is unpacked into ``sent``."""

    def exchange_heads(out: bytes | None, **_: Any) -> None:
        assert out is not None
        parted = PartedTree(out)
        large.extend(torch.empty(one.shape, dtype=one.dtype) for one in parted.apart)
        heads.append(parted)

    def exchange_tensors(out: list[torch.Tensor], *_: Any, **__: Any) -> None:
        for place, tensor in zip(large, out, strict=True):
            place.view(-1).copy_(tensor)
        if sent is not None:
            sent.append(heads.pop().join(large))
        large.clear()

    large: list[torch.Tensor] = []
    heads: list[PartedTree] = []
    runtime: Any = SimpleNamespace(
        rank=1,
        membership=membership(3),
        spec=SimpleNamespace(redundancy="auto", machine="m1"),
        report=said.append,
        decisions=SimpleNamespace(state=SimpleNamespace(votes_at_end=False, committed=1, origin=0)),
        control=SimpleNamespace(exchange_heads=exchange_heads, exchange_tensors=exchange_tensors),
    )
    return FollowerService(runtime, TrainingState(models=models, optimizers=optimizers, others={}))


def vote(service: FollowerService, step: int) -> None:
    """A step with a vote that passes."""
    service.begin_attempt(redone=False)
    if service.still_followed():
        service.exchange(step=step, stepping=True, receiving=False, step_s=0.1)
    service.committed()


def end_votes(service: FollowerService) -> None:
    """Votes are at the end of bodies from now on, as the service asks."""
    assert service.wants_the_end
    state: Any = service._runtime.decisions.state
    state.votes_at_end = True


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


# -- small state that goes as a whole --------------------------------------------------------------


def two_optimizers(said: list[JobLayoutKnown], sent: list[Any]) -> FollowerService:
    models = [nn.Linear(100, 100), nn.Linear(2, 2)]
    optimizers = [torch.optim.Adam(each.parameters(), 0.1) for each in models]
    return made(said, [*models], [*optimizers], sent=sent)


def test_state_of_several_optimizers_goes_with_votes_at_the_end(said: list[JobLayoutKnown]) -> None:
    sent: list[Any] = []
    service, follower = two_optimizers(said, sent), Follower()
    service.protect()
    assert [one.redundancy for one in said] == ["follower"]
    vote(service, 1)
    assert sent[-1]["whole"] is None, "it is not what the step leads to"
    follower.receive(sent[-1], own={})
    follower.committed()
    assert not follower.current
    with pytest.raises(NotFollowedError, match="not all of it"):
        follower.tree(committed=1, own={})
    end_votes(service)
    vote(service, 2)
    follower.receive(sent[-1], own={})
    with pytest.raises(NotFollowedError):
        follower.tree(committed=2, own={})
    follower.committed()
    tree, names = follower.tree(committed=2, own={})
    assert names == ["0:bias", "0:weight", "1:bias", "1:weight"]
    weight = service._state.models[0].get_parameter("weight")
    assert torch.equal(tree["models"][0]["parameters"]["weight"], weight)
    with pytest.raises(NotFollowedError, match="up to step 2, not 3"):
        follower.tree(committed=3, own={})
    follower.receive(sent[-1], own={})
    follower.abort()
    assert follower.current


def test_what_a_program_does_behind_votes_is_told(said: list[JobLayoutKnown]) -> None:
    sent: list[Any] = []
    service = two_optimizers(said, sent)
    service.protect()
    end_votes(service)
    vote(service, 1)
    assert service.written_between() == {}
    vote(service, 2)
    assert not sent[-1]["between"]
    with torch.no_grad():
        service._state.models[0].get_parameter("weight").mul_(2)
    assert service.written_between().keys() == {"0:weight"}
    vote(service, 3)
    assert sent[-1]["between"]
    assert service.written_between() == {}

    again = two_optimizers(said, sent)
    again.protect()
    end_votes(again)
    vote(again, 1)
    again._state.optimizers[1].param_groups[0]["lr"] = 0.01
    assert again.written_between() == {}
    vote(again, 2)
    assert sent[-1]["between"], "a joiner's program has to set the rate again"


def test_large_state_of_several_optimizers_is_not_followed(said: list[JobLayoutKnown]) -> None:
    model = nn.Linear(1500, 1500)
    parts: list[torch.optim.Optimizer] = [
        torch.optim.SGD([each], 0.1) for each in model.parameters()
    ]
    made(said, [model], parts).protect()
    assert said[-1].redundancy == "checkpoint"
    assert said[-1].obstacle == "the session has 2 optimizers, a follower takes one"


def test_what_cannot_be_followed_any_more_goes_as_a_whole_from_the_next_vote_on(
    said: list[JobLayoutKnown],
) -> None:
    sent: list[Any] = []
    model = nn.Linear(2, 2)
    service = made(said, [model], [torch.optim.SGD(model.parameters(), 0.1)], sent=sent)
    service.protect()
    vote(service, 1)
    service.strayed()
    assert not service.still_followed()
    assert [one.redundancy for one in said] == ["follower", "checkpoint"]
    vote(service, 2)
    assert sent[-1]["whole"] is None
    assert [one.redundancy for one in said] == ["follower", "checkpoint"]
    end_votes(service)
    vote(service, 3)
    assert sent[-1]["whole"] is not None
    assert [one.redundancy for one in said] == ["follower", "checkpoint", "follower"]


def test_work_between_steps_leaves_whole_state_without_a_copy_until_the_next_vote(
    said: list[JobLayoutKnown],
) -> None:
    sent: list[Any] = []
    service = two_optimizers(said, sent)
    service.protect()
    end_votes(service)
    vote(service, 1)
    with torch.no_grad():
        service._state.models[1].get_parameter("bias").add_(1)
    service.worked()
    assert said[-1].redundancy == "checkpoint"
    vote(service, 2)
    assert said[-1].redundancy == "follower"


def test_parameters_in_the_same_memory_are_not_followed_apart(said: list[JobLayoutKnown]) -> None:
    """Wrapped in a ``ParameterDict``, a tensor is another parameter in the same memory."""
    tensor = torch.zeros(3, requires_grad=True)
    models = [nn.ParameterDict({"weight": tensor})]
    service = made(said, [*models], [torch.optim.SGD([tensor], 0.1)])
    service.protect()
    assert service.wants_the_end.startswith("the next slot is told all")


def test_state_that_outgrows_a_vote_does_not_go_with_it(said: list[JobLayoutKnown]) -> None:
    """L-BFGS keeps a hundred gradients: a model of a megabyte has two hundred then."""
    sent: list[Any] = []
    model = nn.Linear(500, 500)
    optimizer = torch.optim.LBFGS(model.parameters(), history_size=100)
    service = made(said, [model], [optimizer], sent=sent)
    service.protect()
    end_votes(service)
    vote(service, 1)
    assert sent[-1]["whole"] is not None
    flat = sum(each.numel() for each in model.parameters())
    optimizer.state[model.weight]["old_dirs"] = [torch.zeros(flat) for _ in range(20)]
    vote(service, 2)
    assert said[-1].redundancy == "checkpoint"
    assert "have 20 MiB, and up to 16 go with a vote" in said[-1].obstacle
    vote(service, 3)
    assert len(sent) == 1


@pytest.mark.parametrize(
    "message",
    [
        {"whole": [], "step": 1, "between": False, "names": []},
        {"whole": {}, "step": "1", "between": False, "names": []},
        {"whole": {}},
    ],
)
def test_a_message_that_is_none_is_doubted(message: dict[str, Any]) -> None:
    follower = Follower()
    follower.receive(message, own={})
    follower.committed()
    with pytest.raises(NotFollowedError, match="does not parse"):
        follower.tree(committed=1, own={})
