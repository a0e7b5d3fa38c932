"""Numbers that differ when tensors do: sums of their 64-bit words, at the speed of memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from trainmover_executor.state.packing.checksum import sum_of_words
from trainmover_executor.state.packing.memory import bytes_of, flat_of

__all__ = ["fingerprint_of"]


def fingerprint_of(tensors: Iterable[torch.Tensor]) -> int:
    """A number that differs when any bit of ``tensors`` does (but for bad luck), below 2**63.

    Args:
        tensors: Local tensors, in a fixed order.
    """
    total = 0
    for position, tensor in enumerate(tensors, start=1):
        words = sum_of_words(bytes_of(flat_of(tensor)))
        total = (total * 31 + position * words) % 2**63
    return total
