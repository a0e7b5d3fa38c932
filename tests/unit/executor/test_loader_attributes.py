"""What loaders and samplers change of themselves: told with a pass, and begun with elsewhere."""

from __future__ import annotations

import queue
import random
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Sampler, WeightedRandomSampler

from trainmover.errors import ConfigError
from trainmover_executor.feed.sources.attributes import (
    Attributes,
    attributes_of,
    attributes_of_chain,
)
from trainmover_executor.feed.sources.changes import Changes
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Staged(Sampler):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.stage, self.name, self.seen = 1, "easy", [3]
        self.data = object()

    def __iter__(self) -> Any:
        return iter(range(self.stage))


def told(attributes: Attributes) -> dict[str, Any]:
    tree: dict[str, Any] = unpack_tree(pack_tree(attributes.state()))
    return tree


def test_attributes_are_told_once_they_change() -> None:
    sampler = Staged()
    attributes = attributes_of_chain([sampler])
    assert told(attributes) == {}
    sampler.name = "hard"
    sampler.seen.append(4)
    assert set(told(attributes)) == {"Staged[0].name", "Staged[0].seen"}
    sampler.name = "easy"
    assert "Staged[0].name" in told(attributes)


def test_another_process_begins_a_pass_with_them() -> None:
    here, there = Staged(), Staged()
    mine, theirs = attributes_of_chain([here]), attributes_of_chain([there])
    here.stage, here.seen = 7, [3, 1]
    there.name, kept = "changed by shadow iterations", there.seen
    theirs.state()
    theirs.load(told(mine))
    assert (there.stage, there.name, there.seen) == (7, "easy", [3, 1])
    assert there.seen is kept


def test_weights_of_a_sampler_inside_of_another_are_told() -> None:
    samplers = [WeightedRandomSampler(torch.ones(9), 4) for _ in range(2)]
    mine, theirs = (
        attributes_of_chain([BatchSampler(each, 2, drop_last=False), each]) for each in samplers
    )
    samplers[0].weights[3] = 5.0
    theirs.load(told(mine))
    assert torch.equal(samplers[0].weights, samplers[1].weights)


def test_what_is_too_large_to_be_told_is_refused_where_it_is_another() -> None:
    samplers = [WeightedRandomSampler(torch.ones(200_000), 4) for _ in range(2)]
    mine, theirs = (attributes_of_chain([each]) for each in samplers)
    assert "weights" not in str(told(mine).keys())
    theirs.load(told(mine))
    samplers[0].weights[0] = 2.0
    state = told(mine)
    with pytest.raises(ConfigError, match=r"WeightedRandomSampler\[0\]\.weights"):
        theirs.load(state)
    samplers[1].weights[0] = 2.0
    theirs.load(state)


class Files:
    def __init__(self, count: int = 3000) -> None:
        self.epoch = 0
        self.files = [f"{index}.tar" for index in range(count)]
        self.inner = [Staged()]

    def __iter__(self) -> Any:
        random.shuffle(self.files)
        self.epoch += 1
        return iter(self.files)


class TestLoadersOfOnesOwn:
    def test_the_order_of_a_long_list_goes_to_another_process(self) -> None:
        here, there = Files(), Files()
        mine, theirs = attributes_of(here), attributes_of(there)
        for _ in range(3):
            list(here)
        list(there)
        kept = there.files
        theirs.load(told(mine))
        assert (there.epoch, there.files) == (3, here.files)
        assert there.files is kept

    def test_a_list_that_is_as_at_first_is_not_told(self) -> None:
        here, there = Files(), Files()
        mine, theirs = attributes_of(here), attributes_of(there)
        assert told(mine) == {}
        list(there)
        theirs.load(told(mine))
        assert (there.epoch, there.files) == (0, here.files)

    def test_numbers_of_a_long_list_are_told_where_they_are_others(self) -> None:
        here, there = Files(), Files()
        here.files, there.files = list(range(2000)), list(range(2000))  # type: ignore[assignment]
        mine, theirs = attributes_of(here), attributes_of(there)
        here.files = [7] * 1500  # type: ignore[list-item]
        theirs.load(told(mine))
        assert there.files == here.files

    def test_what_it_was_at_first_is_remembered_from_call_to_call(self) -> None:
        here, there = Files(), Files()
        attributes_of(here).state()
        mine, theirs = attributes_of(here), attributes_of(there)
        list(here)
        mine = attributes_of(here)  # of the next call of session.steps
        theirs.load(told(mine))
        assert there.files == here.files

    def test_what_one_holds_is_remembered_from_loader_to_loader(self) -> None:
        here, there = Files(), Files()
        mine, theirs = ([Files(0) for _ in range(2)] for _ in range(2))
        mine[0].inner = mine[1].inner = here.inner
        theirs[0].inner = theirs[1].inner = there.inner
        for each in (mine[0], theirs[0]):
            attributes_of(each)
        here.inner[0].stage = 5
        attributes_of(theirs[1]).load(told(attributes_of(mine[1])))
        assert there.inner[0].stage == 5

    def test_an_order_of_what_is_not_here_is_refused(self) -> None:
        here, there = Files(), Files(2000)
        mine, theirs = attributes_of(here), attributes_of(there)
        here.files.reverse()
        with pytest.raises(ConfigError, match=r"Files\.files held other items here at first"):
            theirs.load(told(mine))

    def test_objects_of_the_program_in_it_are_looked_into(self) -> None:
        here, there = Files(), Files()
        mine, theirs = attributes_of(here), attributes_of(there)
        here.inner[0].stage = 9
        theirs.load(told(mine))
        assert there.inner[0].stage == 9


class Mixture:
    def __init__(self) -> None:
        self.weights, self.drawn = [1.0, 2.0], 0


def changes_of(mixture: Mixture, *, told: Any = ()) -> Changes:
    return Changes(mixture, [("mixture", mixture)], told=told)


def draw(changes: Changes, mixture: Mixture, *, dropped: bool = False) -> list[float]:
    changes.before(dropped=dropped)
    mixture.drawn += 1
    changes.after()
    return list(mixture.weights)


class TestChangesInThePass:
    def test_what_the_program_changes_is_made_again_at_the_same_batch(self) -> None:
        here, there = Mixture(), Mixture()
        changes = changes_of(here)
        drawn_with = []
        for at in range(6):
            if at == 4:
                here.weights[1] = 7.0
            drawn_with.append(draw(changes, here))
        told = unpack_tree(pack_tree({"told": changes.told}))["told"]
        assert told == [[4, {"mixture.weights": [1.0, 7.0]}]]
        again = changes_of(there, told=told)
        assert [draw(again, there, dropped=True) for _ in range(6)] == drawn_with
        assert again.told == told

    def test_what_draws_change_themselves_is_no_change_of_the_program(self) -> None:
        mixture = Mixture()
        changes = changes_of(mixture)
        for _ in range(5):
            draw(changes, mixture)
        assert changes.told == []

    def test_a_pass_with_too_many_changes_cannot_be_drawn_again(self) -> None:
        mixture = Mixture()
        changes = changes_of(mixture)
        for at in range(400):
            mixture.weights[0] = float(at + 2)
            draw(changes, mixture)
        assert changes.told is None
        with pytest.raises(ConfigError, match="Mixture more than 256 times in a pass"):
            changes_of(Mixture(), told=changes.told)

    def test_what_a_thread_may_change_is_left_alone(self) -> None:
        mixture = Mixture()
        mixture.queue = queue.Queue()  # type: ignore[attr-defined]
        changes = changes_of(mixture)
        for at in range(5):
            mixture.weights[0] = float(at)
            draw(changes, mixture)
        assert changes.told == []
