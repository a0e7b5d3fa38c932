"""Numbers that differ when tensors do: sums of their 64-bit words, at the speed of memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from trainmover_executor.state.packing.checksum import sum_of_words
from trainmover_executor.state.packing.memory import bytes_of, flat_of, on_host

__all__ = ["fingerprint_of", "words_of"]

_WORD: Final = 8


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

    A GPU adds its own memory up: integers wrap there as they do on the host, in any order. It is
    waited for once, not for each tensor.
    """
    sums = [_sum_of(tensor.detach()) for tensor in tensors]
    for device in {each.device for each in sums if isinstance(each, torch.Tensor)}:
        at = [i for i, each in enumerate(sums) if getattr(each, "device", None) == device]
        for i, total in zip(at, torch.stack([sums[i] for i in at]).tolist(), strict=True):
            sums[i] = total
    return [total % 2**64 for total in sums]


def _sum_of(plain: torch.Tensor) -> Any:
    """A number, or a tensor of one on the device that is to work it out."""
    if on_host(plain) or not plain.is_contiguous() or plain.nbytes % _WORD:
        return sum_of_words(bytes_of(flat_of(plain)))
    raw = plain.view(-1).view(torch.uint8)
    if raw.storage_offset() % _WORD or raw.data_ptr() % _WORD:
        return sum_of_words(bytes_of(flat_of(plain)))
    return raw.view(torch.int64).sum()
