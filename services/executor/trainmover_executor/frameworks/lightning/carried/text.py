"""Portable trees as text: one string is compared and packed sooner than a thousand numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

__all__ = ["from_text", "to_text"]

_CHUNK: Final = 16 * 1024
"""A longer string is no small state to the session."""


def to_text(tree: Any) -> list[str]:
    """A portable tree of numbers, strings, small tensors, and containers of them.

    Args:
        tree: What ``portable`` makes of plain values, in dictionaries with names for keys.
    """
    text = json.dumps(_tagged(tree), default=_told)
    return [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]


def from_text(text: list[str], *, device: torch.device) -> Any:
    """The tree, with tensors that were on an accelerator on ``device``."""
    return json.loads("".join(text), object_hook=_reader(device))


def _tagged(tree: Any) -> Any:
    """The tree with its tuples marked, which JSON takes for lists."""
    kind = type(tree)
    if kind is dict:
        return {key: _tagged(value) for key, value in tree.items()}
    if kind is list:
        return [_tagged(each) for each in tree]
    return {"$tuple": [_tagged(each) for each in tree]} if kind is tuple else tree


def _told(value: Any) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
        kind = str(value.dtype).removeprefix("torch.")
        return {"$tensor": [kind, list(value.shape), value.device.type, raw.tobytes().hex()]}
    if isinstance(value, np.ndarray):
        return {"$array": [value.dtype.str, list(value.shape), value.tobytes().hex()]}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    raise TypeError(f"{type(value).__name__} is no part of a portable tree")


def _reader(device: torch.device) -> Callable[[dict[str, Any]], Any]:
    def read(found: dict[str, Any]) -> Any:
        if "$tensor" in found:
            kind, shape, where, raw = found["$tensor"]
            dtype = getattr(torch, kind)
            flat = torch.tensor(list(bytes.fromhex(raw)), dtype=torch.uint8).view(dtype)
            return flat.reshape(shape).to("cpu" if where == "cpu" else device)
        if "$array" in found:
            kind, shape, raw = found["$array"]
            return np.frombuffer(bytes.fromhex(raw), dtype=kind).reshape(shape).copy()
        if "$tuple" in found:
            return tuple(found["$tuple"])
        return bytes.fromhex(found["$bytes"]) if "$bytes" in found else found

    return read
