"""Is what a rank is about to combine with others still a number.

Looked at through bare addresses: behind each operation of torch or numpy on so few elements stands
a hundred times their cost, and after a backward pass none of that code is in any cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import torch

__all__ = ["nonfinite_in"]

_SAMPLE: Final = 32
"""Each one is a cache line of its own: these are what it costs."""

_EXPONENTS: Final[dict[torch.dtype, tuple[type[Any], int]]] = {
    torch.float16: (ctypes.c_uint16, 0x7C00),
    torch.bfloat16: (ctypes.c_uint16, 0x7F80),
    torch.float32: (ctypes.c_uint32, 0x7F80_0000),
    torch.float64: (ctypes.c_uint64, 0x7FF0_0000_0000_0000),
}
"""All ones in NaN and in Inf, and only there (IEEE 754, section 3.4)."""


def nonfinite_in(tensors: Sequence[torch.Tensor]) -> int:
    """How many of some 32 evenly spread elements of each tensor are not finite.

    Args:
        tensors: Of any shape and type; what is not floating point, not contiguous or not in host
            memory is left out.
    """
    found = 0
    for tensor in tensors:
        known = _EXPONENTS.get(tensor.dtype)
        if known is None or tensor.device.type != "cpu" or not tensor.is_contiguous():
            continue
        kind, exponent = known
        count, first, bits = tensor.numel(), tensor.data_ptr(), kind.from_address
        width = ctypes.sizeof(kind)
        stride = max(1, count // _SAMPLE) * width
        for address in range(first, first + count * width, stride):
            if bits(address).value & exponent == exponent:
                found += 1
    return found
