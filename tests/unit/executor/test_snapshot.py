"""Snapshot redundancy without links: a joiner that takes the steps again is where the owner was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.executor.test_redundancy import OPTIMIZERS, Owner
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainmover.errors import ProtocolError
from trainmover_executor.redundancy import followed
from trainmover_executor.redundancy.copies.snapshot import SnapshotCopy, take_again
from trainmover_executor.redundancy.followed import Followed
from trainmover_executor.redundancy.follower import Follower, NotFollowedError
from trainmover_executor.state import units
from trainmover_executor.state.handing_over.transfer import StateCorruptError
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree
from trainmover_executor.state.training import TrainingState

# Adafactor looks at rows and columns, which no copy of single elements could follow.
KINDS = {**OPTIMIZERS, "adafactor": lambda p: torch.optim.Adafactor(p, 1e-2)}


def owner_of(kind: str) -> Owner:
    return Owner(KINDS[kind], follower=Follower(), logged=True)


def handed_over(owner: Owner) -> Any:
    """The tree as it looks after a journey."""
    tree, _ = owner.held()
    return unpack_tree(pack_tree(tree))


def joiner_from(owner: Owner, kind: str) -> tuple[Owner, int]:
    joiner = Owner(KINDS[kind], follower=Follower(), seed=1)
    joiner.vote()  # the shadow of a step
    tree = handed_over(owner)
    joiner.state.load(tree)
    steps = take_again(joiner.state, tree["since"])
    joiner.state.load_buffers([[at, b] for at, b in enumerate(owner.state.buffers())])
    return joiner, steps


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_joiner_comes_to_the_owners_state_bit_for_bit(kind: str) -> None:
    owner = owner_of(kind)
    for _ in range(6):
        owner.vote()
    joiner, steps = joiner_from(owner, kind)
    assert steps == 2  # the first snapshot, without an optimizer's state, was renewed after four
    assert joiner.state.digest() == owner.state.digest()


def test_a_joiner_has_the_gradients_it_had() -> None:
    """None where there were none: the first step of a joiner begins like everybody's."""
    owner = owner_of("adamw")
    owner.vote()
    owner.vote()
    joiner = Owner(KINDS["adamw"], follower=Follower(), seed=1)
    joiner.optimizer.zero_grad()
    tree = handed_over(owner)
    joiner.state.load(tree)
    take_again(joiner.state, tree["since"])
    assert all(parameter.grad is None for parameter in joiner.model.parameters())


def test_void_and_skipped_steps_are_not_taken_again() -> None:
    owner = owner_of("adamw")
    for passes, stepping in [(True, True), (False, True), (True, False), (True, True)]:
        owner.vote(passes=passes, stepping=stepping)
    joiner, steps = joiner_from(owner, "adamw")
    assert steps == 2
    assert joiner.state.digest() == owner.state.digest()


def test_a_snapshot_is_renewed_before_the_gradients_outgrow_it() -> None:
    owner = owner_of("momentum")  # a unit is two tensors, a gradient is one
    for _ in range(25):
        owner.vote()
    renewed = [at for at, message in enumerate(owner.told) if message["units"]]
    assert renewed == [0, 4, 12, 20]  # there is no momentum before the first step
    joiner, steps = joiner_from(owner, "momentum")
    assert steps == 5
    assert joiner.state.digest() == owner.state.digest()


def test_a_vote_that_does_not_pass_renews_nothing() -> None:
    owner = owner_of("momentum")
    for _ in range(12):
        owner.vote()
    owner.vote(passes=False)
    joiner, steps = joiner_from(owner, "momentum")
    assert steps == 8
    assert joiner.state.digest() == owner.state.digest()
    owner.vote()
    assert owner.told[-1]["units"]


def test_a_new_follower_gets_a_snapshot_first() -> None:
    owner = owner_of("adamw")
    owner.vote()
    owner.follower = Follower()
    owner.followed.restart()
    owner.vote()
    with pytest.raises(NotFollowedError, match="not all of it was followed yet"):
        owner.held()
    owner.vote()
    assert joiner_from(owner, "adamw")[0].state.digest() == owner.state.digest()


def test_a_successor_begins_with_a_snapshot() -> None:
    owner = owner_of("adamw")
    for _ in range(3):
        owner.vote()
    _, names = owner.held()
    fresh = Followed(owner.state, logged=True)
    fresh.adopt(names)
    owner.followed = fresh
    owner.vote()
    assert owner.told[-1]["units"]


def test_a_change_behind_the_optimizers_back_is_noticed_at_the_owner() -> None:
    owner = owner_of("adamw")
    for _ in range(3):
        owner.vote()
    assert owner.followed.changed() == ""
    with torch.no_grad():
        for parameter in owner.model.parameters():
            parameter.mul_(0.5)
    assert owner.followed.changed()


def test_a_joiner_whose_optimizer_comes_to_something_else_does_not_join() -> None:
    owner = owner_of("adamw")
    for _ in range(8):
        owner.vote()
    joiner = Owner(OPTIMIZERS["adamw"], follower=Follower(), seed=1)
    joiner.vote()
    step = joiner.optimizer.step
    joiner.optimizer.step = lambda: (step(), joiner.model[0].weight.data.mul_(0.5))
    tree = handed_over(owner)
    joiner.state.load(tree)
    with pytest.raises(StateCorruptError, match=r"0:0\.weight differs after \d steps"):
        take_again(joiner.state, tree["since"])


def test_hooks_of_a_joiner_are_left_out_of_the_steps_that_it_takes_again() -> None:
    """The owner's have changed its gradients already."""
    owner, called = owner_of("adamw"), []
    for _ in range(8):
        owner.vote()
    joiner = Owner(OPTIMIZERS["adamw"], follower=Follower(), seed=1)
    joiner.optimizer.register_step_pre_hook(lambda *_: called.append("in front"))
    joiner.optimizer.register_step_post_hook(lambda *_: called.append("behind"))
    of_all = register_optimizer_step_pre_hook(lambda *_: called.append("of all"))
    tree = handed_over(owner)
    joiner.state.load(tree)
    assert take_again(joiner.state, tree["since"])
    assert not called
    joiner.optimizer.step()
    of_all.remove()
    assert called == ["of all", "in front", "behind"]


def test_an_optimizer_that_fails_is_no_reason_to_die() -> None:
    owner = owner_of("adamw")
    owner.vote()
    owner.vote()
    joiner = Owner(OPTIMIZERS["adamw"], follower=Follower(), seed=1)
    joiner.optimizer.step = lambda: 1 / 0
    with pytest.raises(StateCorruptError, match="could not be taken again: ZeroDivisionError"):
        take_again(joiner.state, handed_over(owner)["since"])


def test_a_part_of_a_snapshot_is_refused() -> None:
    owner = owner_of("adamw")
    owner.vote()
    copy = SnapshotCopy(owner.told[0]["outline"])
    part = dict(list(owner.told[0]["units"].items())[1:])
    with pytest.raises(ProtocolError, match="a part of a snapshot"):
        copy.follow({**owner.told[0], "units": part})
    assert not copy.complete
    with pytest.raises(ProtocolError, match="outline of its state"):
        SnapshotCopy({"units": []})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: [torch.optim.LBFGS(p)], "LBFGS takes more than dense gradients"),
        (lambda p: [torch.optim.SGD(p), torch.optim.SGD(p)], "2 optimizers"),
        (lambda _: [torch.optim.SGD([nn.Parameter(torch.ones(1))])], ""),
        (lambda p: [torch.optim.Adafactor(p)], ""),
        (lambda p: [torch.optim.AdamW(p)], ""),
    ],
)
def test_which_steps_can_be_taken_again(make: Any, words: str) -> None:
    model = nn.Linear(2, 2)
    state = TrainingState(models=[model], optimizers=make(list(model.parameters())), others={})
    obstacle = Followed.log_obstacle(state)
    assert words in obstacle
    assert bool(words) == bool(obstacle)


def test_steps_of_a_parameter_that_came_later_cannot_be_taken_again() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    state = TrainingState(models=[model], optimizers=[optimizer], others={})
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert "belong to none" in Followed.log_obstacle(state)


def test_what_is_on_a_device_is_kept_and_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "on_host", lambda _: False)
    state = owner_of("adamw").state
    assert "parameters are on a device" in Followed.obstacle(state)
    assert not Followed.log_obstacle(state)


@pytest.mark.parametrize(
    ("kind", "words"), [("Adafactor", "may communicate in its step"), ("AdamW", "")]
)
def test_optimizers_that_may_communicate_are_not_taken_again_alone(
    kind: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "DTensor", nn.Parameter)
    model = nn.Linear(2, 2)
    optimizer = getattr(torch.optim, kind)(model.parameters())
    state = TrainingState(models=[model], optimizers=[optimizer], others={})
    assert words in Followed.log_obstacle(state)
    assert bool(words) == bool(Followed.log_obstacle(state))
