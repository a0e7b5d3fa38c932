"""Seeds made of other numbers, and the process-wide generators that are seeded with them."""

from __future__ import annotations

import hashlib
import random
from typing import Final

import numpy as np
import torch

__all__ = ["mix", "seed_process", "torch_state"]

_BYTES: Final = 8
_MASK: Final = 2**63 - 1  # of what torch takes as a seed and as an int64


def mix(*parts: int | str | bytes) -> int:
    """A seed, below 2**63, that depends on every part and their order."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "little") & _MASK


def torch_state() -> bytes:
    """State of torch's process-wide generator, to make seeds of: no number is drawn for them."""
    return torch.get_rng_state().numpy().tobytes()


def seed_process(seed: int) -> None:
    """Seed the process-wide generators of Python, numpy and torch (CPU)."""
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    torch.default_generator.manual_seed(seed)
