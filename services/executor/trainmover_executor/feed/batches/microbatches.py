"""A batch in parts along its samples, for gradient accumulation."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from trainmover.errors import TrainMoverError

__all__ = ["BatchNotSplitError", "split"]


class BatchNotSplitError(TrainMoverError, ValueError):
    """A batch cannot be split by samples."""


def split(batch: Any, count: int) -> Iterator[Any]:
    """The batch in ``count`` parts that are built like it, as equal as possible.

    Mappings, lists, tuples, named tuples and dataclasses are taken apart. What belongs to samples
    is cut: tensors along their first dimension; lists and tuples without tensors in them, and
    arrays, that are as long as the batch, such as the strings a ``DataLoader`` collects. Everything
    else (scalars, strings, tensors without dimensions, other objects) is in every part.

    Args:
        batch: What a loader gave.
        count: How many parts. A batch of fewer samples has as many parts as samples; an empty one
            has none.

    Raises:
        BatchNotSplitError: Tensors disagree in length, nothing has a length, or ``count`` is not
            positive.
    """
    if count < 1:
        raise BatchNotSplitError(f"a batch cannot be split into {count} parts")
    length = _length(batch)
    parts = min(count, length)
    edges = [0, *itertools.accumulate(length // parts + (i < length % parts) for i in range(parts))]
    return (_part(batch, slice(*pair), length) for pair in itertools.pairwise(edges))


def _length(batch: Any) -> int:
    """The number of samples: of tensors, or where there are none of lists."""
    found = list(_lengths_of_tensors(batch, "")) or list(_lengths_of_lists(batch, ""))
    lengths = {length for _, length in found}
    if len(lengths) == 1:
        return lengths.pop()
    if not found:
        raise BatchNotSplitError(
            f"a batch of type {type(batch).__name__} has no tensor or list to split: split it "
            "yourself"
        )
    said = ", ".join(f"batch{path}: {length}" for path, length in found)
    raise BatchNotSplitError(
        f"a batch is split along the first dimension of its tensors, and they disagree ({said}): "
        "split it yourself"
    )


def _lengths_of_tensors(value: Any, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(value, torch.Tensor):
        if value.dim():
            yield path, len(value)
        return
    for key, child in _children(value) or ():
        yield from _lengths_of_tensors(child, path + key)


def _lengths_of_lists(value: Any, path: str) -> Iterator[tuple[str, int]]:
    if _has_samples(value):
        yield path, len(value)
        return
    for key, child in _children(value) or ():
        yield from _lengths_of_lists(child, path + key)


def _part(value: Any, rows: slice, length: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[rows] if value.dim() else value
    if _has_samples(value):
        return value[rows] if len(value) == length else value
    children = _children(value)
    if children is None:
        return value
    return _rebuilt(value, [_part(child, rows, length) for _, child in children])


def _has_samples(value: Any) -> bool:
    """Whether it holds one thing for each sample, if it is as long as the batch."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    if type(value) not in {list, tuple}:  # a subclass, such as a shape, means something else
        return False
    return not any(_holds_tensors(child) for child in value)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return any(_holds_tensors(child) for _, child in _children(value) or ())


def _children(value: Any) -> Sequence[tuple[str, Any]] | None:
    """What is inside, by how it is written behind the name; None of what is not taken apart."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", value[key]) for key in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", child) for name, child in zip(value._fields, value, strict=True)]
    if type(value) in {list, tuple}:
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [(f".{name}", getattr(value, name)) for name in names]
    return None


def _rebuilt(value: Any, parts: list[Any]) -> Any:
    if isinstance(value, MutableMapping):
        rebuilt = copy.copy(value)  # which keeps what a class of its own has besides
        for key, part in zip(value, parts, strict=True):
            rebuilt[key] = part
        return rebuilt
    if isinstance(value, Mapping):
        return dict(zip(value, parts, strict=True))
    if isinstance(value, list | tuple):
        return type(value)._make(parts) if hasattr(value, "_make") else type(value)(parts)
    rebuilt = copy.copy(value)
    for field, part in zip(dataclasses.fields(value), parts, strict=True):
        object.__setattr__(rebuilt, field.name, part)  # of frozen ones, too
    return rebuilt
