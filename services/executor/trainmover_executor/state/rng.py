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
    legacy = np.random.get_state(legacy=False)
    twister = legacy["state"]
    state: dict[str, Any] = {
        "python": {
            "version": version,
            "words": np.array(words, dtype=np.uint32).view(np.int32),
            "gauss": gauss,
        },
        "numpy": {
            "kind": legacy["bit_generator"],
            "keys": twister["key"].view(np.int32),
            "position": twister["pos"],
            "has_gauss": legacy["has_gauss"],
            "cached": legacy["gauss"],
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Put back what ``capture_rng`` returned."""
    python, legacy = state["python"], state["numpy"]
    words = tuple(python["words"].view(np.uint32).tolist())
    random.setstate((python["version"], words, python["gauss"]))
    np.random.set_state(
        (
            legacy["kind"],
            legacy["keys"].view(np.uint32),
            legacy["position"],
            legacy["has_gauss"],
            legacy["cached"],
        )
    )
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
