"""Are ranks under one wrapper replicas of each other? By what they say with their votes."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainmover_executor.redundancy import replicas as module
from trainmover_executor.redundancy.replicas import SAYS_NOTHING, Replicas
from trainmover_executor.state.training import TrainingState

WORLD = 3


class Ranks:
    """A few ranks with a pretended wrapper, and their checksums."""

    def __init__(self) -> None:
        self.wrappers = [
            SimpleNamespace(
                require_forward_param_sync=True, _comm_hooks=[], module=nn.Linear(1, 1, bias=False)
            )
            for _ in range(WORLD)
        ]
        self.last: list[tuple[int, int] | None] = [None] * WORLD
        self.rates: list[dict[str, Any]] = [{"lr": 0.1, "betas": (0.9, 0.99)} for _ in range(WORLD)]
        self.ranks = [
            Replicas(
                self._state(rate),
                rank=rank,
                world_size=WORLD,
                last=lambda rank=rank: self.last[rank],
            )
            for rank, rate in enumerate(self.rates)
        ]
        for rank, wrapper in zip(self.ranks, self.wrappers, strict=True):
            rank.begin(committed=0, origin=-10)  # a job that is on its way
            rank._wrappers = [wrapper]  # type: ignore[list-item]

    @staticmethod
    def _state(rate: dict[str, Any]) -> Any:
        torch.manual_seed(0)
        return SimpleNamespace(
            models=(models := [nn.Linear(1, 1, bias=False)]),
            parameters=lambda: [each for model in models for each in model.parameters()],
            optimizers=[],
            compared_settings=lambda _: rate,
            outline=lambda *, extras: [len(models), "ema" if extras else ""],
        )

    def vote(self, step: int, checksums: tuple[int | None, ...]) -> list[bool]:
        """The vote behind ``step``, of which the ranks have these checksums."""
        self.last = [None if each is None else (step, each) for each in checksums]
        said = [rank.says(committed=step + 1) for rank in self.ranks]
        least = [min(numbers) for numbers in zip(*said, strict=True)]
        return [bool(rank.heard(least)) for rank in self.ranks]

    def run(self, steps: int) -> None:
        for step in range(steps):
            assert not any(self.vote(step, (step, step, step)))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setattr(module, "replicas_of", lambda *_, **__: tuple(range(WORLD)))
    return Ranks()


def test_ranks_that_hold_the_same_are_replicas(ranks: Ranks) -> None:
    ranks.run(10)
    assert [rank.ranks for rank in ranks.ranks] == [(0, 1, 2)] * WORLD


def test_ranks_that_differ_from_the_first_steps_on_are_none(ranks: Ranks) -> None:
    assert ranks.vote(0, (7, 8, 9)) == [True] * WORLD
    assert [rank.ranks for rank in ranks.ranks] == [(0,), (1,), (2,)]
    assert ranks.vote(1, (7, 7, 7)) == [False] * WORLD  # final, and said once


def keeping(ranks: Ranks, *kept: dict[str, torch.Tensor]) -> None:
    """Have each rank's optimizer keep something else of the parameter."""
    for rank, tensors in zip(ranks.ranks, kept, strict=True):
        (parameter,) = rank._state.parameters()
        optimizer = torch.optim.SGD([parameter], 0.1)
        if tensors:
            optimizer.state[parameter] = tensors
        rank._state.optimizers[:] = [optimizer]


def test_what_optimizers_keep_for_their_share_of_parameters_parts_them(ranks: Ranks) -> None:
    keeping(ranks, {"momentum": torch.ones(1)}, {"momentum": torch.zeros(1)}, {})
    for rank in ranks.ranks:
        rank._origin = 0
    assert ranks.vote(0, (7, 7, 7)) == [True] * WORLD


def test_a_model_that_one_rank_alone_has_parts_them(ranks: Ranks) -> None:
    """It has no parameters, so that nothing else differs."""
    ranks.ranks[0]._state.models.append(nn.Identity())
    for rank in ranks.ranks:
        rank._compares_all = True
    assert ranks.vote(-1, (None,) * WORLD) == [True] * WORLD


def test_what_optimizers_begin_to_keep_later_parts_them(ranks: Ranks) -> None:
    ranks.run(5)
    keeping(ranks, {"momentum": torch.ones(1)}, {}, {})
    assert ranks.vote(5, (5, 5, 5)) == [True] * WORLD


def test_other_bits_of_what_optimizers_keep_are_corrupt_memory_later(ranks: Ranks) -> None:
    keeping(ranks, *({"momentum": torch.full((1,), float(value))} for value in range(WORLD)))
    ranks.run(10)


def test_looking_at_what_optimizers_keep_leaves_it_alone(ranks: Ranks) -> None:
    keeping(ranks, {}, {}, {})
    ranks.run(10)
    assert not any(rank._state.optimizers[0].state for rank in ranks.ranks)


def test_an_average_that_was_made_before_wrapping_parts_them(ranks: Ranks) -> None:
    average = nn.Linear(4, 4)
    ranks.ranks[1]._state.models.append(average)
    for rank in (0, 2):
        ranks.ranks[rank]._state.models.append(copy.deepcopy(average))
    with torch.no_grad():
        average.weight.data[0, 0] += 1
    for rank in ranks.ranks:
        rank._compares_all = True
    assert ranks.vote(-1, (None,) * WORLD) == [True] * WORLD


def test_what_is_thawed_after_wrapping_parts_them(ranks: Ranks) -> None:
    """DDP does not average its gradients."""
    ranks.run(10)
    layers = [nn.Parameter(torch.zeros(3), requires_grad=False) for _ in ranks.ranks]
    for rank, layer in zip(ranks.ranks, layers, strict=True):
        rank._frozen = [layer]
    assert ranks.vote(10, (10,) * WORLD) == [False] * WORLD
    for layer in layers:
        layer.requires_grad_(True)
    assert ranks.vote(11, (11,) * WORLD) == [False] * WORLD
    with torch.no_grad():
        layers[2].add_(1)
    assert ranks.vote(12, (12,) * WORLD) == [True] * WORLD


def test_alike_parameters_part_nobody(ranks: Ranks) -> None:
    for rank in ranks.ranks:
        rank._compares_all = True
    assert ranks.vote(-1, (None,) * WORLD) == [False] * WORLD
    ranks.run(10)


def test_a_difference_in_a_plain_job_is_left_to_the_detector(ranks: Ranks) -> None:
    ranks.run(10)
    assert ranks.vote(10, (7, 7, 8)) == [False] * WORLD


def test_steps_behind_no_sync_part_the_ranks_late(ranks: Ranks) -> None:
    ranks.run(10)
    for wrapper, rank in zip(ranks.wrappers, ranks.ranks, strict=True):
        wrapper.require_forward_param_sync = False
        rank.before_optimizer()
        wrapper.require_forward_param_sync = True
        rank.before_optimizer()
    assert ranks.vote(10, (5, 5, 6)) == [True] * WORLD


def test_a_communication_hook_may_part_the_ranks_late(ranks: Ranks) -> None:
    for wrapper in ranks.wrappers:
        wrapper._comm_hooks.append(("hook", "state"))
    ranks.run(10)
    assert ranks.vote(10, (5, 4, 6)) == [True] * WORLD


def test_a_joiner_says_nothing_and_learns_from_the_others(ranks: Ranks) -> None:
    ranks.vote(0, (1, 2, 3))
    ranks.ranks[1].parted = False  # another process took its place
    assert ranks.vote(1, (None, None, None)) == [False, True, False]


def test_checksums_of_other_steps_say_nothing(ranks: Ranks) -> None:
    ranks.last = [(4, 9), (4, 9), (4, 9)]
    assert ranks.ranks[0].says(committed=6)[:2] == list(SAYS_NOTHING[:2])


def test_a_rate_that_one_rank_sets_by_itself_parts_the_ranks(ranks: Ranks) -> None:
    ranks.run(10)
    ranks.rates[1]["lr"] = 0.05
    assert ranks.vote(10, (7, 7, 7)) == [True] * WORLD
    assert [rank.ranks for rank in ranks.ranks] == [(0,), (1,), (2,)]


def test_settings_are_compared_by_their_numbers(ranks: Ranks) -> None:
    for at, rate in enumerate(ranks.rates):
        rate["hook"], rate["lr"] = object(), torch.tensor(float("nan"))
        ranks.rates[at]["best"] = float("nan")
    ranks.run(10)
    ranks.rates[2]["betas"] = (0.9, 0.999)
    assert all(ranks.vote(10, (7, 7, 7)))


def test_each_group_and_each_scheduler_has_its_turn() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [one]} for one in model.parameters()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    state = TrainingState(models=[model], optimizers=[optimizer], others={"scheduler": scheduler})
    optimizer.param_groups[1]["lr"] = 0.2
    compared = [state.compared_settings(step) for step in range(4)]
    assert [one.get("lr") for one in compared] == [0.1, 0.2, None, 0.1]
    assert compared[2]["num_bad_epochs"] == 0


def test_after_a_failure_one_rank_may_have_set_the_rate_of_the_next_step(ranks: Ranks) -> None:
    ranks.run(10)
    ranks.rates[1]["lr"] = 0.01  # in the body that another rank has not begun
    said = [rank.says_after_failure(committed=10) for rank in ranks.ranks]
    least = [min(numbers) for numbers in zip(*said, strict=True)]
    assert [rank.heard(least) for rank in ranks.ranks] == [""] * WORLD
    assert ranks.vote(10, (7, 7, 7)) == [True] * WORLD


def test_after_a_failure_all_hear_what_one_of_them_heard_with_the_last_vote(ranks: Ranks) -> None:
    ranks.run(10)
    ranks.ranks[0].parted = True
    said = [rank.says_after_failure(committed=10) for rank in ranks.ranks]
    least = [min(numbers) for numbers in zip(*said, strict=True)]
    assert [bool(rank.heard(least)) for rank in ranks.ranks] == [False, True, True]
