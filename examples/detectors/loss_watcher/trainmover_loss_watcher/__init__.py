"""Says when the loss runs away."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import isfinite
from statistics import median
from typing import ClassVar

from pydantic import Field

from trainmover.detection import BaseDetector, CollectiveWindow, DetectorConfig, Finding
from trainmover.telemetry.records import Flag

__all__ = ["LossWatcher", "LossWatcherConfig"]


class LossWatcherConfig(DetectorConfig):
    """When a loss is called diverging."""

    ratio: float = Field(default=1.5, gt=1, description="So many times its lowest level.")
    steps: int = Field(default=20, ge=3, description="The level is the median of so many values.")


class LossWatcher(BaseDetector):
    """Says that the loss diverges, and takes it back when it does not any more."""

    api_version: ClassVar[int] = 1
    Config = LossWatcherConfig

    def __init__(self, config: LossWatcherConfig) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=config.steps)
        self._lowest: float | None = None
        self._found = False

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        """Take in the losses of a machine's steps."""
        steps = window.steps
        losses = steps["loss"][(steps["flags"] & Flag.LOSS) > 0]
        # NaN is the business of the built-in ``numeric``.
        self._losses.extend(float(loss) for loss in losses if isfinite(loss))
        if len(self._losses) < self._config.steps:
            return
        level = median(self._losses)
        self._lowest = level if self._lowest is None else min(level, self._lowest)
        diverges = level > self._config.ratio * self._lowest
        if diverges != self._found:
            self._found = diverges
            yield Finding(
                kind="loss",
                machine=None,
                rank=None,
                confidence=0.8,
                summary=f"the loss is {level:.4g}; its lowest level was {self._lowest:.4g}",
                evidence={"level": level, "lowest": self._lowest},
                closed=not diverges,
            )
