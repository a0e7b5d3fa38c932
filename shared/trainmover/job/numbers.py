"""Numbers that come from outside: each has a size, so that what reads it has room for it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

__all__ = ["Count", "Epoch", "Rank", "decimal"]

Rank = Annotated[int, Field(ge=0, lt=2**31)]
"""A rank: telemetry has 32 bits with a sign for it."""

Epoch = Annotated[int, Field(ge=0, lt=2**32)]
"""An epoch: frames have 32 bits for it."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of steps, bytes, or starts."""


def decimal(text: str | bytes, *, digits: int) -> int | None:
    """The number that ``text`` writes in at most ``digits`` decimal digits; None for all else."""
    known = text.isascii() and text.isdigit() and len(text) <= digits
    return int(text) if known else None
