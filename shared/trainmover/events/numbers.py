"""Numbers as they may stand in facts: what reads them has a size for them, too."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

__all__ = ["Count", "Epoch", "Rank"]

Rank = Annotated[int, Field(ge=0, lt=2**31)]
"""A rank: telemetry has 32 bits with a sign for it."""

Epoch = Annotated[int, Field(ge=0, lt=2**32)]
"""An epoch: frames have 32 bits for it."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of steps, bytes, or starts."""
