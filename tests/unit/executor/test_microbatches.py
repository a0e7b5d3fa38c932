"""A batch is cut by samples, whatever a loader made of them."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from trainmover_executor.feed.batches.microbatches import BatchNotSplitError, split

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    names: list[str]
    temperature: float = 0.5
    seen: int = field(default=3, init=False)


def rows(count: int) -> torch.Tensor:
    return torch.arange(count * 2).view(count, 2)


@given(length=st.integers(0, 40), count=st.integers(1, 12))
def test_parts_are_as_equal_as_possible_never_empty_and_together_the_batch(length, count):
    parts = list(split(rows(length), count))
    assert len(parts) == min(length, count)
    sizes = [len(part) for part in parts]
    assert sizes == [len(part) for part in torch.tensor_split(rows(length), count)][: len(sizes)]
    assert all(sizes)
    assert torch.equal(torch.cat([rows(0), *parts]), rows(length))


def test_parts_are_views():
    whole = rows(4)
    next(split(whole, 2)).fill_(9)
    assert whole[0, 0] == 9


def test_a_pair_stays_a_pair():
    x, y = rows(5), torch.arange(5)
    (first, labels), (second, _) = split([x, y], 2)
    assert torch.equal(first, x[:3])
    assert torch.equal(labels, y[:3])
    assert torch.equal(second, x[3:])
    assert [type(part) for part in split((x, y), 2)] == [tuple, tuple]


def test_a_dict_keeps_its_keys_and_what_belongs_to_no_sample():
    batch = {
        "x": rows(4),
        "names": ["a", "b", "c", "d"],
        "scores": (1.0, 2.0, 3.0, 4.0),
        "weights": np.arange(4),
        "scale": torch.tensor(2.0),
        "task": "same",
        "classes": ["cat", "dog"],
        "size": torch.Size([2, 2, 2, 2]),
        "inner": {"mask": torch.ones(4, 1), "none": None},
    }
    first, second = split(batch, 2)
    assert list(first) == list(batch)
    assert first["names"] == ["a", "b"]
    assert second["scores"] == (3.0, 4.0)
    assert second["weights"].tolist() == [2, 3]
    assert first["scale"] is batch["scale"]
    assert first["task"] == "same"
    assert first["classes"] == ["cat", "dog"]
    assert first["size"] == torch.Size([2, 2, 2, 2])
    assert first["inner"]["mask"].shape == (2, 1)
    assert first["inner"]["none"] is None
    assert len(batch["x"]) == 4


def test_named_tuples_and_dataclasses_stay_what_they_are():
    first, _ = split(Pair(rows(4), rows(4)), 2)
    assert isinstance(first, Pair)
    assert first.y.shape == (2, 2)

    (one, other) = split(Batch(rows(3), ["a", "b", "c"]), 2)
    assert one.names == ["a", "b"]
    assert other.names == ["c"]
    assert (one.temperature, one.seen) == (0.5, 3)


@pytest.mark.parametrize("kind", [OrderedDict, UserDict, MappingProxyType])
def test_other_mappings(kind):
    first, second = split(kind({"x": rows(4), "y": torch.arange(4)}), 2)
    assert torch.equal(first["x"], rows(4)[:2])
    assert second["y"].tolist() == [2, 3]
    if kind is not MappingProxyType:
        assert type(first) is kind


def test_what_a_loader_collects():
    data = [{"x": torch.ones(3), "text": f"sample {i}", "label": i} for i in range(5)]
    batch = next(iter(DataLoader(data, batch_size=5)))
    parts = list(split(batch, 2))
    assert [part["text"] for part in parts] == [
        ["sample 0", "sample 1", "sample 2"],
        ["sample 3", "sample 4"],
    ]
    assert parts[1]["label"].tolist() == [3, 4]


def test_a_batch_without_tensors_is_split_by_its_lists():
    assert list(split(["a", "b", "c"], 2)) == [["a", "b"], ["c"]]
    assert list(split({"text": ["a", "b"], "task": "t"}, 4)) == [
        {"text": ["a"], "task": "t"},
        {"text": ["b"], "task": "t"},
    ]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"x": rows(4), "y": [rows(3)]}, r"batch\['x'\]: 4, batch\['y'\]\[0\]: 3"),
        (Pair(rows(4), rows(3)), r"batch\.x: 4, batch\.y: 3"),
        (3.0, "type float has no tensor or list"),
        (torch.tensor(1.0), "no tensor or list"),
        ({"a": ["x"], "b": ["x", "y"]}, r"batch\['a'\]: 1, batch\['b'\]: 2"),
    ],
)
def test_what_cannot_be_split_is_said_at_once(batch: Any, said: str):
    with pytest.raises(BatchNotSplitError, match=said):
        split(batch, 2)


def test_as_many_parts_as_nobody_can_make():
    with pytest.raises(BatchNotSplitError, match="into 0 parts"):
        split(rows(2), 0)
