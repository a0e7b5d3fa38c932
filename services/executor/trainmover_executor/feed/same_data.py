"""Whether a joiner's program has made the same data as that of the rank it replaces.

Batches in a list may have been computed by the program, a rollout of its policy say. A joiner's
program did that with a model of its own.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from trainmover.errors import ConfigError
from trainmover_executor.state.packing.memory import bytes_of, flat_of

__all__ = ["print_of", "require_same"]

_MOST_ITEMS: Final = 1024
_MOST_BYTES: Final = 4 * 1024
_DEPTH: Final = 4


def print_of(loader: Any) -> int | None:
    """A number that differs when data that is in memory does; None for data that is loaded."""
    if isinstance(loader, DataLoader):
        return _print_of_dataset(loader.dataset)
    return _add(loader, 0, _DEPTH) if type(loader) in {list, tuple} else None


def _print_of_dataset(dataset: Any) -> int | None:
    if isinstance(dataset, TensorDataset):
        return _add(dataset.tensors, 0, _DEPTH)
    if isinstance(dataset, Subset):
        few = np.ascontiguousarray(dataset.indices[:_MOST_ITEMS])
        inner = (_print_of_dataset(dataset.dataset) or 0) + len(dataset.indices)
        return zlib.crc32(few.tobytes(), inner) if few.dtype.kind in "biu" else inner
    return None


def _add(value: Any, crc: int, depth: int) -> int:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or type(value) is not torch.Tensor:
            return crc
        few = value.detach().reshape(-1)[: _MOST_BYTES // value.element_size()]
        return zlib.crc32(bytes_of(flat_of(few)), crc)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        first = value.reshape(-1)[: _MOST_BYTES // value.itemsize]
        return zlib.crc32(np.ascontiguousarray(first).tobytes(), crc)
    if isinstance(value, dict) and depth:
        value = list(value.values())
    if isinstance(value, list | tuple) and depth:
        crc = zlib.crc32(len(value).to_bytes(8, "little"), crc)
        for each in value[:_MOST_ITEMS]:
            crc = _add(each, crc, depth - 1)
        return crc
    if type(value) in {int, float, bool, str}:
        return zlib.crc32(repr(value).encode(), crc)
    return crc


def require_same(loader: Any, theirs: int | None) -> None:
    """Make sure that ``loader`` gives what that of another process of the rank gives.

    Raises:
        ConfigError: It does not.
    """
    if theirs is not None and print_of(loader) != theirs:
        raise ConfigError(
            f"the batches that session.steps() was given in a {type(loader).__name__} are others "
            "than those of the rank that is to be replaced: the program computed them, from a "
            "model or from what came before. A joiner cannot compute them again. Make them inside "
            "of 'with step', or by session.between_steps(work), whose result joiners are told."
        )
