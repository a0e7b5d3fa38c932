"""Numbers in text that others wrote: bounded, so that reading one is cheap and raises nothing."""

from __future__ import annotations

__all__ = ["decimal"]


def decimal(text: str | bytes, *, digits: int) -> int | None:
    """The number that ``text`` writes in at most ``digits`` decimal digits; None for all else."""
    known = text.isascii() and text.isdigit() and len(text) <= digits
    return int(text) if known else None
