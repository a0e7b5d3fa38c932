"""What others know about a machine: maintenance, preemption, health reports; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from trainmover.detection import BaseDetector, DetectorConfig, Evidence, Finding
from trainmover.events.machine import MachineNoticed

__all__ = ["ExternalConfig", "ExternalDetector"]


class ExternalConfig(DetectorConfig):
    """Settings of ``external``.

    Attributes:
        move_health: Health reports recommend a move as well; else only ends that were announced.
    """

    move_health: bool = True


class ExternalDetector(BaseDetector):
    """Turns announcements (``machine.noticed``) into incidents, so that a move starts in time."""

    api_version: ClassVar[int] = 1
    Config = ExternalConfig

    def __init__(self, config: ExternalConfig = ExternalConfig()) -> None:  # noqa: B008 - frozen
        self._config = config

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """Find what was announced; withdraw it when the announcement is taken back."""
        fact = evidence.fact
        if not isinstance(fact, MachineNoticed) or fact.kind == "metrics":
            return ()
        moves = fact.kind != "health" or self._config.move_health
        when = "" if fact.leaves_in_s is None else f" in {fact.leaves_in_s:g} s"
        by = f" (says {fact.source})" if fact.source else ""
        return (
            Finding(
                kind="notice",
                machine=fact.machine,
                rank=None,
                confidence=1.0,
                summary=f"{fact.machine}: {fact.kind}{when}: {fact.reason}{by}",
                evidence=fact.model_dump(mode="json"),
                closed=fact.cleared,
                advice="move" if moves else "none",
            ),
        )
