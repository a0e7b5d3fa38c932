"""Where the state of a rank survives its machine."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = ["CHOICES", "Redundancy", "RedundancyChoice"]

Redundancy = Literal["replica", "follower", "snapshot", "checkpoint"]
"""``replica``: another machine holds the same state anyway. ``follower``: the next slot keeps a
copy of it current in host memory. ``snapshot``: the next slot keeps what it was some steps ago, and
the gradients since. ``checkpoint``: nowhere but in what the user saved."""

RedundancyChoice = Literal["auto", "replica", "follower", "snapshot", "checkpoint"]
"""What may be asked for; ``auto`` takes the first that is possible, in that order."""

CHOICES: Final[tuple[RedundancyChoice, ...]] = get_args(RedundancyChoice)
