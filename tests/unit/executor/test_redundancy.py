"""Follower redundancy without links: what an owner says with its votes is what a follower holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainmover.errors import ConfigError
from trainmover.job.topology import Layout
from trainmover_executor.redundancy.advance import UnpredictableError, advance, same
from trainmover_executor.redundancy.followed import Followed
from trainmover_executor.redundancy.follower import Follower, NotFollowedError
from trainmover_executor.redundancy.layout import redundancy_of
from trainmover_executor.state.handing_over.written import WrittenElsewhere, marks_of_states
from trainmover_executor.state.optimizers.settings import settings_of
from trainmover_executor.state.packing.portable import PartedTree, pack_tree, part_tree, unpack_tree
from trainmover_executor.state.training import TrainingState


class Owner:
    """A training rank whose votes are carried to a follower as links would carry them."""

    def __init__(
        self, make: Any, *, follower: Follower, seed: int = 0, logged: bool = False
    ) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        self.optimizer = make(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        self.state = TrainingState(
            models=[self.model],
            optimizers=[self.optimizer],
            others={"scheduler": self.scheduler},
        )
        self.followed = Followed(self.state, logged=logged)
        self.told: list[dict[str, Any]] = []
        self.follower = follower
        self.step = 0

    def small(self) -> dict[str, Any]:
        own = {"settings": settings_of(self.optimizer), "others": self.state.small()}
        return unpack_tree(pack_tree(own))

    def vote(self, *, passes: bool = True, stepping: bool = True) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 6)).pow(2).sum().backward()
        small = self.small()
        message = self.followed.message(step=self.step + 1, small=small, stepping=stepping)
        self.told.append(message)
        head, apart = part_tree(message, limit=64)
        parted = PartedTree(head)
        arrived = [t.clone().view(s.shape) for t, s in zip(apart, parted.apart, strict=True)]
        self.follower.receive(parted.join(arrived), own=small)
        if not passes:
            self.follower.abort()
            return
        self.step += 1
        if stepping:
            self.optimizer.step()
            self.followed.stepped()
        self.followed.committed()
        self.follower.committed()
        self.scheduler.step()

    def held(self) -> tuple[dict[str, Any], list[str]]:
        return self.follower.tree(committed=self.step, own=self.small())


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "foreach": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-2, centered=True),
    "groups": lambda p: torch.optim.AdamW(
        [
            {"params": (own := list(p))[:2], "weight_decay": 0.0},
            {"params": own[2:], "lr": 1e-3},
        ]
    ),
}


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_the_copy_is_the_owners_state_bit_for_bit(kind: str) -> None:
    owner = Owner(OPTIMIZERS[kind], follower=Follower())
    for _ in range(5):
        owner.vote()
    tree, names = owner.held()
    assert same(tree["optimizers"], owner.state.tree()["optimizers"])
    assert same(tree["others"], owner.state.tree()["others"])
    assert same(tree["models"][0]["parameters"], owner.state.tree()["models"][0]["parameters"])
    assert names == owner.followed.current


def test_a_joiner_that_loads_the_copy_has_the_owners_digest() -> None:
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    for _ in range(4):
        owner.vote()
    tree, _ = owner.held()
    joiner = Owner(OPTIMIZERS["adamw"], follower=Follower(), seed=1)
    joiner.vote()  # the shadow of a step
    joiner.state.load(tree)
    joiner.state.load_buffers([[at, b] for at, b in enumerate(owner.state.buffers())])
    assert joiner.state.digest() == owner.state.digest()


def test_void_and_skipped_steps_are_not_followed() -> None:
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    for passes, stepping in [(True, True), (False, True), (True, False), (True, True)]:
        owner.vote(passes=passes, stepping=stepping)
    tree, _ = owner.held()
    assert same(tree["optimizers"], owner.state.tree()["optimizers"])


def test_units_go_over_within_the_budget_and_are_current_together() -> None:
    owner = Owner(OPTIMIZERS["momentum"], follower=Follower())
    owner.followed.budget = 1
    for count in range(1, 7):
        owner.vote()
        assert len(owner.followed.current) == count
        with pytest.raises(NotFollowedError, match="not all of it"):
            owner.held()
    owner.vote()
    tree, _ = owner.held()
    assert same(tree["optimizers"], owner.state.tree()["optimizers"])


def test_a_new_follower_is_told_everything_anew() -> None:
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    owner.vote()
    owner.follower = Follower()
    owner.followed.restart()
    owner.followed.committed()  # of the step that was under way: the new one never heard of it
    assert owner.followed.current == []
    for _ in range(3):
        owner.vote()
    tree, _ = owner.held()
    assert same(tree["optimizers"], owner.state.tree()["optimizers"])


def test_a_successor_goes_on_with_what_the_follower_holds() -> None:
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    for _ in range(3):
        owner.vote()
    _, names = owner.held()
    fresh = Followed(owner.state)
    fresh.adopt(names)
    owner.followed = fresh
    owner.vote()
    tree, _ = owner.held()
    assert same(tree["optimizers"], owner.state.tree()["optimizers"])


def _parameters(tree: dict[str, Any]) -> list[Any]:
    return [model["parameters"] for model in tree["models"]]


def _blend(weight: torch.Tensor) -> None:
    weight.data.mul_(0.5)


def _replace(weight: torch.Tensor) -> None:
    weight.data = weight.data * 0.5


@pytest.mark.parametrize("write", [_blend, _replace])
def test_what_something_else_wrote_to_goes_over_again(write: Any) -> None:
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    for _ in range(3):
        owner.vote()
    write(owner.model[0].weight)
    owner.vote()
    assert list(owner.told[-1]["units"]) == ["0:0.weight"]
    owner.vote()
    assert not owner.told[-1]["units"]
    tree, _ = owner.held()
    assert owner.follower.current
    assert same(_parameters(tree), _parameters(owner.state.tree()))


def test_what_the_program_writes_between_two_steps_is_told_until_the_next_vote() -> None:
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    for _ in range(3):
        owner.vote()
    assert owner.followed.written_between() == {}
    with torch.no_grad():
        owner.model[0].weight.mul_(0.5)
    first = owner.followed.written_between()
    assert first.keys() == {"0:0.weight"}
    with torch.no_grad():
        owner.model[0].bias.mul_(0.5)
    told = owner.followed.written_between()
    assert told == {**first, "0:0.bias": told["0:0.bias"]}  # both looks are of one gap
    assert not {*told} & {*owner.followed.current}
    assert not owner.follower.writes_between
    owner.vote()
    assert owner.follower.writes_between
    assert owner.followed.written_between() == {}
    assert {*told} <= {*owner.followed.current}
    tree, _ = owner.held()
    assert same(_parameters(tree), _parameters(owner.state.tree()))


def test_a_program_that_writes_to_all_parameters_between_steps_is_followed() -> None:
    """Noise on the weights, or clipping: what is compared is what the optimizer left."""
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    for _ in range(4):
        owner.vote()
        with torch.no_grad():
            for parameter in owner.model.parameters():
                parameter.add_(torch.randn_like(parameter))
        owner.followed.written_between()
    assert owner.follower.current


def test_work_that_puts_parameters_back_has_not_changed_them() -> None:
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    owner.vote()
    weight = owner.model[0].weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(0)
        assert owner.followed.changed_by_work() == "0:0.weight"
        weight.copy_(kept)
    assert owner.followed.changed_by_work() == ""


def test_nothing_can_be_written_to_an_empty_shard() -> None:
    """A rank may hold nothing of a small parameter, and code writes to all of them."""
    elsewhere = WrittenElsewhere({"bias": (empty := torch.empty(0))})
    elsewhere.note()
    empty.fill_(1)
    assert elsewhere.names() == elsewhere.changed() == []


def test_what_cannot_be_compared_cheaply_counts_as_changed() -> None:
    parameter = torch.zeros(4, 4).t()[:, :2]
    elsewhere = WrittenElsewhere({"weight": parameter})
    elsewhere.note()
    parameter.fill_(0)
    assert elsewhere.changed() == ["weight"]


def test_a_successor_tells_what_is_written_in_its_first_step() -> None:
    """Nothing was noted of an optimizer's step that another process took."""
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    for _ in range(3):
        owner.vote()
    fresh = Followed(owner.state)
    fresh.adopt(owner.followed.current)
    owner.followed = fresh
    _blend(owner.model[0].weight)
    owner.vote()
    owner.vote()
    tree, _ = owner.held()
    assert same(_parameters(tree), _parameters(owner.state.tree()))


def test_what_no_optimizer_holds_goes_over_again_once_it_was_written_to() -> None:
    """A target network, or the rounded copy of weights that are trained in another precision."""
    owner = Owner(lambda p: torch.optim.AdamW(list(p)[2:], 1e-2), follower=Follower())
    for _ in range(3):
        owner.vote()
    _blend(owner.model[0].weight)
    for _ in range(8):
        owner.vote()
    assert owner.follower.current
    tree, _ = owner.held()
    assert same(_parameters(tree), _parameters(owner.state.tree()))


def test_what_was_written_to_goes_over_until_a_vote_passes() -> None:
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    owner.followed.budget = 1
    for _ in range(8):
        owner.vote()
    for parameter in owner.model.parameters():
        _blend(parameter)
    owner.vote(passes=False)
    owner.vote()
    assert len(owner.told[-1]["units"]) == 6
    tree, _ = owner.held()
    assert same(_parameters(tree), _parameters(owner.state.tree()))


def test_what_is_written_behind_the_optimizers_step_goes_with_a_vote_at_the_end() -> None:
    owner = Owner(OPTIMIZERS["momentum"], follower=Follower())
    for _ in range(3):
        owner.vote()
    owner.model(torch.randn(4, 6)).pow(2).sum().backward()
    small = owner.small()
    message = owner.followed.message(step=owner.step + 1, small=small, stepping=True)
    message["gradients"] = {name: each.clone() for name, each in message["gradients"].items()}
    owner.optimizer.step()
    owner.followed.stepped()
    _blend(owner.model[2].bias)
    message["behind"] = owner.followed.behind()
    assert list(message["behind"]) == ["0:2.bias"]
    owner.follower.receive(message, own=small)
    owner.step += 1
    owner.followed.committed()
    owner.follower.committed()
    assert not owner.followed.written()
    tree, _ = owner.held()
    assert same(_parameters(tree), _parameters(owner.state.tree()))


def test_a_change_that_nobody_sees_is_noticed_by_its_consequences() -> None:
    owner = Owner(OPTIMIZERS["momentum"], follower=Follower())
    for _ in range(3):
        owner.vote()
    assert owner.follower.current
    owner.optimizer.state[owner.model[0].weight]["momentum_buffer"].mul_(0.5)
    for _ in range(6):
        owner.vote()
    assert not owner.follower.current
    with pytest.raises(NotFollowedError, match=r"0:0\.weight differs after a followed step"):
        owner.held()


def test_a_state_of_another_step_is_not_handed_out() -> None:
    owner = Owner(OPTIMIZERS["adamw"], follower=Follower())
    for _ in range(3):
        owner.vote()
    with pytest.raises(NotFollowedError, match="up to step 3, not 4"):
        owner.follower.tree(committed=4, own=owner.small())


def test_what_changes_alike_is_foretold() -> None:
    theirs = {"lr": 0.5, "decay": 0.0, "seen": [3, 4]}
    before = {"lr": 0.5, "decay": 0.1, "seen": [3, 9]}
    now = {"lr": 0.25, "decay": 0.1, "seen": [4, 9]}
    assert advance(theirs, before=before, now=now) == {"lr": 0.25, "decay": 0.0, "seen": [4, 4]}


def test_what_differs_and_changes_is_not_foretold() -> None:
    with pytest.raises(UnpredictableError, match="/seen changes"):
        advance({"seen": 7}, before={"seen": 3}, now={"seen": 4})


def test_sameness_knows_types_and_nan() -> None:
    nan = float("nan")
    assert same([nan, (1, "a")], [nan, [1, "a"]])
    assert not same(1, 1.0)
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not same({"a": 1}, {"b": 1})


FOUR = Layout(slots=4, ranks_per_slot=2)


def kind_of(
    choice: Any,
    replicas: tuple[int, ...],
    *,
    obstacle: str = "",
    log_obstacle: str = "",
    layout: Layout = FOUR,
) -> tuple[str, str]:
    return redundancy_of(
        choice,
        rank=replicas[0],
        replicas=replicas,
        layout=layout,
        obstacle=obstacle,
        log_obstacle=log_obstacle,
    )


@pytest.mark.parametrize(
    ("choice", "replicas", "obstacles", "expected"),
    [
        ("auto", (2, 4), ("", ""), ("replica", "")),
        ("auto", (2, 3), ("", ""), ("follower", "")),  # on the same machine: no replica
        ("auto", (2,), ("exotic", ""), ("snapshot", "exotic")),
        ("auto", (2,), ("exotic", "strange"), ("checkpoint", "strange")),
        ("replica", (2, 0), ("exotic", ""), ("replica", "")),
        ("follower", (2, 0), ("", ""), ("follower", "")),
        ("snapshot", (2, 0), ("", ""), ("snapshot", "")),
        ("checkpoint", (2, 0), ("", ""), ("checkpoint", "")),
    ],
)
def test_the_kind_follows_from_the_layout(
    choice: Any, replicas: tuple[int, ...], obstacles: tuple[str, str], expected: tuple[str, str]
) -> None:
    found = kind_of(choice, replicas, obstacle=obstacles[0], log_obstacle=obstacles[1])
    assert found == expected


def test_what_is_impossible_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="no other machine holds the state of rank 2"):
        kind_of("replica", (2, 3))
    with pytest.raises(ConfigError, match=r"cannot be followed: exotic.*--redundancy snapshot"):
        kind_of("follower", (2,), obstacle="exotic")
    with pytest.raises(ConfigError, match=r"cannot be followed: exotic.*redundancy checkpoint"):
        kind_of("follower", (2,), obstacle="exotic", log_obstacle="strange")
    with pytest.raises(ConfigError, match="cannot be taken again: strange"):
        kind_of("snapshot", (2,), log_obstacle="strange")
    one = Layout(slots=1, ranks_per_slot=2)
    assert kind_of("auto", (0, 1), layout=one) == ("checkpoint", "the job has one machine")


@pytest.mark.parametrize("how", ["cleared", "loaded", "reset"])
def test_state_of_an_optimizer_that_a_program_changes_shows(how: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    before = marks_of_states([optimizer])
    assert marks_of_states([optimizer]) == before
    if how == "cleared":
        optimizer.state.clear()
    elif how == "loaded":
        optimizer.load_state_dict(optimizer.state_dict())
    else:
        optimizer.state[model.weight]["momentum_buffer"].zero_()
    assert marks_of_states([optimizer]) != before
