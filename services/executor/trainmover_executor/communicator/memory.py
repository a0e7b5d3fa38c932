"""Views of tensors as flat elements and raw bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from trainmover_executor.links.pump import PIECE_BYTES

__all__ = ["Staging", "bytes_of", "flat_of", "write_back"]


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as one dimension: a view when it is contiguous, a copy when not."""
    plain = tensor.detach()
    return plain.view(-1) if plain.is_contiguous() else plain.contiguous().view(-1)


def write_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Copy ``flat`` into ``tensor`` where ``flat_of`` had to make a copy."""
    plain = tensor.detach()
    if not plain.is_contiguous():
        plain.copy_(flat.view(plain.shape))


def bytes_of(flat: torch.Tensor) -> memoryview:
    """The bytes of a flat contiguous tensor, writable, without a copy."""
    if flat.numel() == 0:
        return memoryview(b"")
    raw: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return raw.data


class Staging:
    """The one piece of memory that a communicator receives into before it reduces."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytes_of(torch.empty(PIECE_BYTES, dtype=torch.uint8))

    @property
    def bytes(self) -> memoryview:
        """All of it as bytes."""
        return self._bytes
