"""The random number generators a training step draws from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["capture_rng", "restore_rng"]


def capture_rng() -> dict[str, Any]:
    """State of the generators of Python, numpy and torch (CPU and every CUDA device in use)."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": {
            "version": version,
            "words": np.array(words, dtype=np.int64),
            "gauss": gauss,
        },
        "numpy": {
            "kind": kind,
            "keys": np.asarray(keys).astype(np.int64),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Put back what ``capture_rng`` returned."""
    python, legacy = state["python"], state["numpy"]
    words = tuple(int(word) for word in python["words"])
    random.setstate((python["version"], words, python["gauss"]))
    np.random.set_state(
        (
            legacy["kind"],
            legacy["keys"].astype(np.uint32),
            legacy["position"],
            legacy["has_gauss"],
            legacy["cached"],
        )
    )
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
