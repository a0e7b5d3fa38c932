"""JSON that every reader can parse: without NaN and infinities, which it does not know."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["dumps"]


def dumps(data: Any, *, indent: int | None = None) -> str:
    """``data`` as JSON; numbers that JSON cannot hold become null."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(data, indent=indent, separators=separators, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(data), indent=indent, separators=separators, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
