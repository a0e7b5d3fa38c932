"""A number that tells batches apart, cheap enough to be taken of each."""

from __future__ import annotations

import zlib
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trainmover_executor.state.packing.memory import bytes_of, flat_of

__all__ = ["print_of_batch"]

_MOST_PARTS: Final = 64
_MOST_ELEMENTS: Final = 256
_LONGEST: Final = 256
_ATOMS: Final = (bool, int, float, complex, str, bytes, type(None))


def print_of_batch(batch: Any) -> int:
    """A number that differs, most likely, when what a loader gave does.

    Of each tensor in host memory and each array a few hundred elements are read, spread over all of
    it; of tensors on a device the shape; of objects the tensors, arrays and containers they hold.
    Sets have no order, and are left out. Of something that cannot be read so it is 0.

    Args:
        batch: What a loader gave.
    """
    try:
        return _print_of(batch)
    except Exception:  # noqa: BLE001 - tensors and objects of any library; training goes on
        return 0


def _print_of(batch: Any) -> int:
    crc = 0
    waiting = [batch]
    for _ in range(_MOST_PARTS):
        if not waiting:
            break
        value = waiting.pop()
        crc = zlib.crc32(_words(value), crc)
        waiting.extend(islice(_held(value), _MOST_PARTS))
    return crc


def _words(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        shape = [size for size in value.shape if type(size) is int]  # not those of jagged tensors
        return f"{value.dtype}{shape}".encode() + _elements(value)
    if isinstance(value, np.ndarray):
        few = value.reshape(-1)[:: _every(value.size)] if value.flags.c_contiguous else value[:0]
        numbers = few.tobytes() if few.dtype.kind in "biufcSU" else b""
        return f"{value.dtype}{value.shape}".encode() + numbers
    if isinstance(value, _ATOMS):
        return repr(value)[:_LONGEST].encode("utf-8", "backslashreplace")
    return type(value).__name__.encode()


def _elements(tensor: torch.Tensor) -> bytes:
    is_read = (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and not tensor.is_quantized
        and not is_traceable_wrapper_subclass(tensor)
        and tensor.is_contiguous()
    )
    if not is_read:
        return b""
    flat = tensor.detach().as_subclass(torch.Tensor).view(-1)
    return bytes(bytes_of(flat_of(flat[:: _every(flat.numel())])))


def _every(count: int) -> int:
    return max(1, count // _MOST_ELEMENTS)


def _held(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for pair in islice(value.items(), _MOST_PARTS) for part in pair]
    if isinstance(value, list | tuple):
        return list(islice(value, _MOST_PARTS))
    if isinstance(value, torch.Tensor | np.ndarray | type) or not hasattr(value, "__dict__"):
        return []
    data = (torch.Tensor, np.ndarray, dict, list, tuple)
    return [each for each in vars(value).values() if isinstance(each, data)]
