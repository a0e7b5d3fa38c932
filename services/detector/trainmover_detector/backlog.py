"""Catching up: what a detector that starts over makes of the facts stored so far.

Evidence that came while nobody looked must still be judged, and what was published already must
not be published again.
"""

from __future__ import annotations

from trainmover.events.incident import IncidentClosed, IncidentOpened, IncidentUpdated
from trainmover.job.topology import Frozen
from trainmover_detector.core import DetectorCore

__all__ = ["Backlog"]


class Backlog:
    """Feeds stored facts into a core and keeps what should have been said.

    Args:
        core: A fresh core.
    """

    def __init__(self, core: DetectorCore) -> None:
        self._core = core
        self._concluded: list[Frozen] = []
        self._opened: set[str] = set()
        self._closed: set[str] = set()

    def take(self, fact: Frozen, now_s: float) -> None:
        """The next stored fact, in stream order."""
        match fact:
            case IncidentOpened(id=id):
                self._opened.add(id)
                self._core.remember(fact)
            case IncidentClosed(id=id):
                self._closed.add(id)
                self._core.remember(fact)
            case _:
                self._concluded += self._core.on_fact(fact, now_s)

    def rest(self) -> list[Frozen]:
        """What follows from the stored facts, still holds, and is not among them."""
        still = {id(opened) for opened in self._core.incidents}
        rest: list[Frozen] = []
        for fact in self._concluded:
            match fact:
                case IncidentOpened():
                    wanted = id(fact) in still
                case IncidentClosed(id=name):
                    wanted = name in self._opened - self._closed
                case IncidentUpdated():
                    wanted = False
                case _:
                    wanted = True
            if wanted:
                rest.append(fact)
        return rest
