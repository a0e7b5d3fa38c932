"""Numbers that differ when tensors do: sums of their 64-bit words, at the speed of memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from trainmover_executor.state.packing.checksum import sum_of_words
from trainmover_executor.state.packing.memory import bytes_of, flat_of, words_on_device

__all__ = ["fingerprint_of", "words_of"]


def fingerprint_of(tensors: Iterable[torch.Tensor]) -> int:
    """A number that differs when any bit of ``tensors`` does (but for bad luck), below 2**63.

    Args:
        tensors: Local tensors, in a fixed order.
    """
    total = 0
    for position, words in enumerate(words_of(tensors), start=1):
        total = (total * 31 + position * words) % 2**63
    return total


def words_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """The sum of the 64-bit words of each of ``tensors``, modulo 2**64, taken where it lies.

    A device is waited for once, not for each tensor.
    """
    sums: list[int] = []
    waiting: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        words = words_on_device(tensor)
        sums.append(sum_of_words(bytes_of(flat_of(tensor))) if words is None else 0)
        if words is not None:
            waiting.setdefault(words.device, []).append((index, words.sum()))
    for sent in waiting.values():
        totals = torch.stack([total for _, total in sent]).tolist()
        for (index, _), total in zip(sent, totals, strict=True):
            sums[index] = total
    return [total % 2**64 for total in sums]
