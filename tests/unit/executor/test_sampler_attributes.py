"""What a program changes of a sampler: told with a pass, and begun with elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Sampler, WeightedRandomSampler

from trainmover.errors import ConfigError
from trainmover_executor.feed.sources.attributes import SamplerAttributes
from trainmover_executor.state.packing.portable import pack_tree, unpack_tree


class Staged(Sampler):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.stage, self.name, self.seen = 1, "easy", [3]
        self.data = object()

    def __iter__(self) -> Any:
        return iter(range(self.stage))


def told(attributes: SamplerAttributes) -> dict[str, Any]:
    tree: dict[str, Any] = unpack_tree(pack_tree(attributes.state()))
    return tree


def test_numbers_are_told_always_and_others_once_they_change() -> None:
    sampler = Staged()
    attributes = SamplerAttributes([sampler])
    assert told(attributes) == {"Staged[0].stage": 1}
    sampler.name = "hard"
    sampler.seen.append(4)
    assert set(told(attributes)) == {"Staged[0].stage", "Staged[0].name", "Staged[0].seen"}
    sampler.name = "easy"
    assert "Staged[0].name" in told(attributes)


def test_another_process_begins_a_pass_with_them() -> None:
    here, there = Staged(), Staged()
    mine, theirs = SamplerAttributes([here]), SamplerAttributes([there])
    here.stage, here.seen = 7, [3, 1]
    there.name, kept = "changed by shadow iterations", there.seen
    theirs.state()
    theirs.load(told(mine))
    assert (there.stage, there.name, there.seen) == (7, "easy", [3, 1])
    assert there.seen is kept


def test_weights_of_a_sampler_inside_of_another_are_told() -> None:
    samplers = [WeightedRandomSampler(torch.ones(9), 4) for _ in range(2)]
    mine, theirs = (
        SamplerAttributes([BatchSampler(each, 2, drop_last=False), each]) for each in samplers
    )
    samplers[0].weights[3] = 5.0
    theirs.load(told(mine))
    assert torch.equal(samplers[0].weights, samplers[1].weights)


def test_what_is_too_large_to_be_told_is_refused_once_it_changes() -> None:
    sampler = WeightedRandomSampler(torch.ones(200_000), 4)
    attributes = SamplerAttributes([sampler])
    assert "weights" not in str(told(attributes).keys())
    sampler.weights[0] = 2.0
    with pytest.raises(ConfigError, match=r"WeightedRandomSampler\[0\]\.weights\).* 1600000 bytes"):
        attributes.state()
