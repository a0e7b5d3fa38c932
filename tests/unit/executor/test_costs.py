"""What being movable costs a rank is said once, and when it changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from trainmover.events.executor import WorkerCosts
from trainmover_executor.feed import Feed
from trainmover_executor.report.costs import Costs
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.training import TrainingState


class Rank:
    def __init__(self) -> None:
        self.said: list[WorkerCosts] = []
        runtime: Any = SimpleNamespace(
            report=self.said.append, rank=1, spec=SimpleNamespace(machine="m1")
        )
        self.costs = Costs(runtime)
        model = nn.Linear(8, 8)
        state = TrainingState(models=[model], optimizers=[SGD(model.parameters())], others={})
        self.start = StepStart(state)
        self.feeds = [Feed(iter([1, 2, 3]))]

    def steps(self, count: int, *, at_end: bool) -> None:
        for step in range(count):
            self.start.capture(step, whole=at_end)
            because = "it communicates"
            self.costs.committed(self.start, self.feeds, at_end=at_end, because=because)


def test_it_is_said_once_and_when_it_changes() -> None:
    rank = Rank()
    rank.steps(2, at_end=False)
    assert rank.said == []
    rank.steps(20, at_end=False)
    [front] = rank.said
    assert (front.vote, front.kept_bytes, front.because) == ("front", 0, "")
    assert front.state_bytes == 72 * 4, "plain SGD keeps nothing"
    assert (front.machine, front.rank, front.drawn) == ("m1", 1, "list_iterator")
    rank.steps(20, at_end=True)
    [_, end] = rank.said
    assert (end.vote, end.kept_bytes, end.because) == ("end", 72 * 4, "it communicates")
    assert end.keep_s > 0


class Sharded(torch.Tensor):
    """Says the size of the whole and holds a part of it, as a DTensor does."""

    def to_local(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)[:2]


def test_of_a_shard_the_part_counts_that_the_rank_holds() -> None:
    model = nn.Linear(8, 8, bias=False)
    optimizer = SGD(model.parameters())
    state = TrainingState(models=[model], optimizers=[optimizer], others={})
    optimizer.state[model.weight]["momentum_buffer"] = torch.zeros(8).as_subclass(Sharded)
    assert StepStart(state).state_bytes == (64 + 2) * 4


def test_a_standby_says_what_it_spent_in_drawing_when_that_has_doubled() -> None:
    rank = Rank()
    rank.costs.followed(rank.feeds)
    for spent in (0.5, 0.9, 1.1, 2.0, 2.3):
        rank.feeds[0].cost_s = spent
        rank.costs.followed(rank.feeds)
    assert [one.drawing_s for one in rank.said] == [0.5, 1.1, 2.3]
    assert rank.said[0].vote is None


def test_a_standby_that_draws_for_long_says_how_far_it_has_to_go_and_that_it_is_there() -> None:
    rank = Rank()
    for spent, behind in ((1.0, 900), (2.1, 800), (3.0, 700), (4.3, 500), (5.0, 0), (5.1, 0)):
        rank.feeds[0].cost_s = spent
        rank.costs.followed(rank.feeds, behind=behind)
    assert [one.behind for one in rank.said] == [800, 500, 0]
