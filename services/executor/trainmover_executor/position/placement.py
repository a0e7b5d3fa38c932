"""Where in the body of a step its vote is: in front of the optimizer, or at the end.

In front of the only change, a vote needs no copy of anything: a broken step has changed nothing.
That holds for a body that communicates, then steps its optimizer. Bodies that communicate after an
optimizer's step (two optimizers in alternation, LBFGS, a loss that is averaged for the log), or
that change parameters earlier (two-pass methods), must vote at their end, and what they change is
kept until then. Which it is, each rank finds out by looking; the vote itself carries what they
found, so that all ranks place the next one alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

__all__ = ["Placement", "Sighting"]

_QUIET_STEPS: Final = 16
"""Steps of several optimizers that have to be seen before their vote is moved to the front."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a rank saw of one body.

    Attributes:
        communicated: It issued collectives after the first step of an optimizer.
        changed: It changed parameters before that.
    """

    communicated: bool = False
    changed: bool = False

    @property
    def needs_the_end(self) -> bool:
        """Whether such a body must vote at its end."""
        return self.communicated or self.changed


@dataclass(frozen=True, slots=True)
class Placement:
    """What a rank has seen that decides where it wants its votes.

    Attributes:
        quiet: Steps in a row in which nothing asked for the end of the body.
        settled: A body asked for it: it stays.
    """

    quiet: int = 0
    settled: bool = False

    def saw(self, sighting: Sighting) -> Placement:
        """A body has ended."""
        if sighting.needs_the_end:
            return replace(self, settled=True, quiet=0)
        return replace(self, quiet=self.quiet + 1)

    def wants_the_end(self, *, at_end: bool) -> bool:
        """What this rank says with a vote.

        Args:
            at_end: Whether votes are at the end now.
        """
        return self.settled or (at_end and self.quiet < _QUIET_STEPS)

    def to_tree(self) -> dict[str, Any]:
        """As a portable tree."""
        return {"quiet": self.quiet, "settled": self.settled}

    @staticmethod
    def from_tree(tree: dict[str, Any]) -> Placement:
        """From a portable tree."""
        return Placement(**tree)
