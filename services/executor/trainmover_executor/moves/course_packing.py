"""How what joiners are told of the program's course is packed; see ``position.packed``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from trainmover.errors import TrainMoverError
from trainmover_executor.position.packed import Blob
from trainmover_executor.position.results import Returned
from trainmover_executor.program.values.trees import is_tree_of_generator
from trainmover_executor.state.packing.blobs import blob_of, tree_of

__all__ = ["PACKING", "portable_part", "result_of", "told_of", "value_of"]

_LARGE_BYTES: Final = 4096
"""A result of work between steps is packed by itself from here on, and a tensor is large."""
_UNPACKED: Final = 4
"""Groups that are kept unpacked: a program passes what is in a group one after the other."""


class _CoursePacking:
    """See ``Packing``."""

    def __init__(self) -> None:
        self._unpacked = lru_cache(maxsize=_UNPACKED)(tree_of)

    def pack(self, tree: Any, *, compress: bool = True) -> Blob:
        """See ``Packing.pack``."""
        return blob_of(tree, compress=compress)

    def unpack(self, blob: Blob) -> Any:
        """See ``Packing.unpack``."""
        return self._unpacked(blob)

    def lasts(self, variable: Any) -> bool:
        """Not generators, nor large tensors: no program's way hangs on them for long."""
        return not is_tree_of_generator(variable) and _tensor_bytes(variable) <= _LARGE_BYTES


def _tensor_bytes(tree: Any) -> int:
    if isinstance(tree, torch.Tensor | np.ndarray):
        return tree.nbytes
    if isinstance(tree, dict):
        return sum(map(_tensor_bytes, tree.values()))
    return sum(map(_tensor_bytes, tree)) if isinstance(tree, list | tuple) else 0


PACKING: Final = _CoursePacking()


def told_of(result: Any) -> Any:
    """What others are told that ``between_steps`` returned; None if it cannot be carried."""
    try:
        return value_of(blob_of(result))
    except TrainMoverError:
        return None


def portable_part(result: Any) -> tuple[Any, list[str]]:
    """``result`` with None in place of what cannot be carried, and the types of that."""
    left_out: list[str] = []
    return _portable_part(result, left_out), left_out


def _portable_part(result: Any, left_out: list[str]) -> Any:
    if result is not None and told_of(result) is None:
        match result:
            case dict() if all(isinstance(key, str | int) for key in result):
                return {key: _portable_part(value, left_out) for key, value in result.items()}
            case list() | tuple() if type(result) in {list, tuple}:
                return type(result)(_portable_part(each, left_out) for each in result)
            case _:
                left_out.append(type(result).__name__)
                return None
    return result


def value_of(blob: Blob) -> Any:
    """Of a ``Returned``: a blob only where it is large."""
    return blob if blob.nbytes > _LARGE_BYTES else tree_of(blob)


def result_of(returned: Returned) -> Any:
    """What ``between_steps`` returned at another rank, for the program."""
    return tree_of(returned.value) if isinstance(returned.value, Blob) else returned.value
