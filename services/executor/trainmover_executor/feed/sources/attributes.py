"""What samplers keep as attributes and a program changes: weights, a stage, a count of passes.

A pass over the indices depends on them as they were when it began, so that is what a joiner begins
it with. What they are now is among the program's variables.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch

from trainmover.errors import ConfigError
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.plain import is_plain, is_tensor_of_program
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable

__all__ = ["SamplerAttributes"]

_MOST_BYTES: Final = 1024 * 1024
"""It goes to other machines with each vote."""
_NUMBERS: Final = (bool, int, float)


class SamplerAttributes:
    """Of a loader's sampler, of the one that it wraps, and so on.

    Numbers are told always, anything else once it has changed: indices may be long, and stay.

    Args:
        samplers: The outermost first.
    """

    def __init__(self, samplers: Sequence[Any]) -> None:
        self._samplers = samplers
        self._first = {path: _tree_of(value) for path, _, _, value in self._plain()}
        self._changed: set[str] = set()

    def state(self) -> dict[str, Any]:
        """What they are now; portable.

        Raises:
            ConfigError: What has changed is too large to be told.
        """
        told, nbytes = {}, 0
        for path, _, _, value in self._plain():
            tree = _tree_of(value)
            if path not in self._changed and not equal(self._first.get(path), tree):
                self._changed.add(path)
            if type(value) in _NUMBERS or path in self._changed:
                told[path] = tree
                nbytes += getattr(value, "nbytes", 0)
        if nbytes > _MOST_BYTES:
            raise _too_large(self._changed, nbytes)
        return told

    def load(self, state: dict[str, Any]) -> None:
        """Have attributes be what ``state`` said; others what they were at first.

        Raises:
            ConfigError: One that is too large to be told was changed here.
        """
        for path, holder, name, value in self._plain():
            tree = state.get(path, self._first.get(path))
            if tree is None or equal(_tree_of(value), tree):
                continue
            if _is_large(value):
                raise _too_large([path], value.nbytes)
            vars(holder)[name] = restored(tree, value)

    def _plain(self) -> Iterator[tuple[str, Any, str, Any]]:
        """(path, sampler, name, value) of attributes that can be told."""
        for at, sampler in enumerate(self._samplers):
            for name, value in list(getattr(sampler, "__dict__", {}).items()):
                if is_plain(value) or _is_array(value):
                    yield f"{type(sampler).__name__}[{at}].{name}", sampler, name, value


def _tree_of(value: Any) -> Any:
    """As a portable tree; a print of what is too large to be told."""
    if not _is_large(value):
        return portable(value)
    array = value.detach().numpy() if isinstance(value, torch.Tensor) else value
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def _is_large(value: Any) -> bool:
    return bool(getattr(value, "nbytes", 0) > _MOST_BYTES)


def _too_large(paths: Iterable[str], nbytes: int) -> ConfigError:
    return ConfigError(
        f"attributes of the loader's sampler ({', '.join(sorted(paths))}) change and take {nbytes} "
        f"bytes; {_MOST_BYTES} can be kept for a machine that is replaced. Keep them in a smaller "
        "type, or draw the indices yourself in session.between_steps(work) and make a loader of "
        "them."
    )


def _is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc"
    return isinstance(value, torch.Tensor) and is_tensor_of_program(value)
