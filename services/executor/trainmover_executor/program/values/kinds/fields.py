"""Fields of records as bytes: numbers, small tensors and arrays.

Of what kind a field is, all records of a list have in common, mostly; its bytes are its own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from trainmover_executor.state.packing.memory import bytes_of, flat_of, on_host

__all__ = ["FieldKind", "packed_field", "reader_of_field"]

FieldKind = tuple[Any, ...]
"""``("tensor", "float32", (1, 4))``, say."""

_NUMBERS: Final[Mapping[type, str]] = {bool: "?", int: "q", float: "d"}


def packed_field(field: Any) -> tuple[FieldKind, bytes] | None:
    """Of what kind a field is, and its content; None where it is no part of a record."""
    if field is None:
        return ("none",), b""
    code = _NUMBERS.get(type(field))
    if code is not None:
        is_long = code == "q" and not -(1 << 63) <= field < 1 << 63
        return None if is_long else (("number", code), struct.pack(f"<{code}", field))
    if isinstance(field, np.generic) and field.dtype.kind in "biuf":
        return ("scalar", field.dtype.str), field.tobytes()
    if type(field) is np.ndarray and field.dtype.kind in "biuf":
        return ("array", field.dtype.str, field.shape), field.tobytes()
    if type(field) is torch.Tensor and _is_apart(field):
        dtype = str(field.dtype).removeprefix("torch.")
        return ("tensor", dtype, tuple(field.shape)), bytes(bytes_of(flat_of(field)))
    return None


def _is_apart(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary tensor in the memory of the host, and no parameter."""
    is_ordinary = tensor.layout is torch.strided and on_host(tensor)
    return is_ordinary and not (tensor.requires_grad or tensor.is_inference())


def reader_of_field(kind: Sequence[Any]) -> tuple[int, Callable[[bytes], Any]]:
    """How many bytes a field of a kind takes, and what makes it of them.

    Raises:
        ValueError: There is no such kind.
    """
    if kind[0] == "number" and kind[1] in _NUMBERS.values():
        code = f"<{kind[1]}"
        return struct.calcsize(code), lambda data: struct.unpack(code, data)[0]
    if kind[0] == "scalar":
        scalar = _type_of(kind[1])
        return scalar.itemsize, lambda data: np.frombuffer(data, scalar)[0]
    if kind[0] == "array" and _are_sizes(kind[2]):
        entry, sizes = _type_of(kind[1]), tuple(kind[2])
        nbytes = math.prod(sizes) * entry.itemsize
        return nbytes, lambda data: np.frombuffer(bytearray(data), entry).reshape(sizes)
    if kind[0] == "tensor" and _are_sizes(kind[2]):
        dtype, shape = getattr(torch, kind[1], None), list(kind[2])
        if isinstance(dtype, torch.dtype):
            return math.prod(shape) * dtype.itemsize, lambda data: _tensor_of(data, dtype, shape)
    if kind[0] == "none":
        return 0, lambda _: None
    raise ValueError(f"no field of a record is of kind {kind!r}")


def _type_of(text: str) -> np.dtype[Any]:
    try:
        found = np.dtype(text)
    except TypeError:
        found = None
    if found is None or found.kind not in "biuf":
        raise ValueError(f"no field of a record is of type {text!r}")
    return found


def _are_sizes(shape: Sequence[Any]) -> bool:
    return all(type(size) is int and size >= 0 for size in shape)


def _tensor_of(data: bytes, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
        if data
        else torch.empty(shape, dtype=dtype)
    )
