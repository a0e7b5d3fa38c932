"""A rough job: its batches come late, each machine's in its own time, and are lost in a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from trainmover.detection import CollectiveWindow
from trainmover.testing.rough_jobs.work import Rough, RoughWork
from trainmover.testing.simulated_jobs.job import Frame, SimulatedJob
from trainmover.testing.simulated_jobs.physics import Floats
from trainmover.testing.simulated_jobs.work import Work

__all__ = ["RoughJob"]

_LATEST_S: Final = 0.4
"""Batches of one machine stay in their order: this is less than there is between two of them."""
_MORE: Final = 0.5
"""Chance that the batch after a lost one is lost as well."""
_LONGEST_S: Final = 2.0
"""So long nothing comes of a machine at most: one that is silent for three has lost its lease."""
_LOSS_SPREAD: Final = 0.05
_LOSS_TAIL: Final = 4.0


@dataclass
class RoughJob(SimulatedJob):
    """A job with rough noise in place of ``healthy``, of which only ``epochs_at`` counts.

    Attributes:
        rough: The noise.
    """

    rough: Rough = field(default_factory=Rough)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._losing: dict[str, int] = {}

    def frames(self, *, steps: int) -> Iterator[Frame]:
        """Frames until ``steps`` steps are complete; each batch comes in its own time."""
        for frame in super().frames(steps=steps):
            yield replace(frame, windows=())
            for late_s, window in sorted(self._late(frame.windows), key=lambda each: each[0]):
                now_s = frame.now_s + late_s
                yield Frame(now_s, frame.step, (replace(window, received_s=now_s),))

    def _late(
        self, windows: tuple[CollectiveWindow, ...]
    ) -> Iterator[tuple[float, CollectiveWindow]]:
        """Batches, and how long each is on its way."""
        for window in windows:
            yield min(self.rng.exponential(self.rough.late_s), _LATEST_S), window

    def _make_work(self) -> Work:
        return RoughWork(
            self.shape,
            self.rough,
            epochs_at=self.healthy.epochs_at,
            step_s=self.step_s,
            network=self.network,
            rng=self.rng,
        )

    def _arrives(self, machine: str) -> bool:
        before = self._losing.get(machine, 0)
        chance = _MORE if before else self.rough.lost
        lost = (before + 1) * self.period_s < _LONGEST_S and self.rng.random() < chance
        self._losing[machine] = before + 1 if lost else 0
        return not lost

    def _loss_noise(self) -> Floats:
        noise: Floats = _LOSS_SPREAD * self.rng.standard_t(_LOSS_TAIL, self.shape.world)
        return noise
