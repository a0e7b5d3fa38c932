"""Which parameters, and which state of optimizers, something else than these has written to.

Whoever follows a rank is told its gradients and takes its optimizer's steps. Averaging weights,
clipping or blending them is not in these, and may happen in one step of many.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from trainmover_executor.state.packing.memory import on_host

__all__ = ["WrittenElsewhere", "beginning_of", "marks_of_states"]

_BEGINNING_BYTES: Final = 1024
_Beginning: Final = ctypes.c_char * _BEGINNING_BYTES
_Mark = tuple[int, int, int]


class WrittenElsewhere:
    """Compares parameters with what their optimizer left.

    By the place of their memory, their version and their first bytes: a write through ``.data``
    leaves no version behind, and what averages or clips a parameter changes its beginning, too.
    A write through ``.data`` that leaves the first KiB as it was is not seen, nor is one on a
    device: hand-overs compare fingerprints for those.

    Args:
        parameters: By name.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters = parameters
        self._marks: dict[str, _Mark] = {}

    def note(self) -> None:
        """The optimizer has just left the parameters as they are."""
        self._marks = {name: _mark_of(each) for name, each in self._parameters.items()}

    def names(self) -> list[str]:
        """Parameters that were written to since the last ``note``; none before the first."""
        marks = self._marks
        return [name for name in marks if _mark_of(self._parameters[name]) != marks[name]]

    def changed(self) -> list[str]:
        """Those of ``names`` that do not have their content again, as far as their beginning says.

        An evaluation puts averaged weights in, and the trained ones back.
        """
        beginnings = {name: self._marks[name][2] for name in self.names()}
        return [
            name
            for name, was in beginnings.items()
            if not was or beginning_of(self._parameters[name]) != was
        ]


def beginning_of(parameter: torch.Tensor) -> int:
    """A checksum of the first KiB of a parameter; 0 where that cannot be had cheaply."""
    return _mark_of(parameter)[2]


def _mark_of(parameter: torch.Tensor) -> _Mark:
    local = getattr(parameter, "_local_tensor", parameter)  # local_of() is a node of autograd
    address, version = local.data_ptr(), local._version  # noqa: SLF001 - no public name
    size = min(local.nbytes, _BEGINNING_BYTES)
    if not size:
        return 0, 0, 0  # a rank may hold nothing of a small parameter: nothing is written to it
    if not (address and on_host(local) and local.is_contiguous()):
        return address, version, 0
    # By its address: a view of a tensor as bytes costs ten times as much.
    return address, version, zlib.crc32(memoryview(_Beginning.from_address(address))[:size])


def marks_of_states(optimizers: Sequence[torch.optim.Optimizer]) -> list[Any]:
    """Differ when a program has cleared, replaced or reset what optimizers keep of parameters.

    By how much there is, and by what is kept of the first parameter: whoever restarts momentum does
    so for all of them.
    """
    return [
        (id(each.state), len(each.state), [_mark_of_value(one) for one in _first_of(each)])
        for each in optimizers
    ]


def _first_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    kept = (each for each in optimizer.state.values() if isinstance(each, dict))
    return list(next(kept, {}).values())


def _mark_of_value(value: Any) -> Any:
    return _mark_of(value) if isinstance(value, torch.Tensor) else None
