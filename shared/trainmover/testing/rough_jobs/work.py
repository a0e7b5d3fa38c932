"""What the steps of a rough job ask of its ranks: heavy tails, drift, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainmover.testing.simulated_jobs.injections import Healthy
from trainmover.testing.simulated_jobs.physics import Floats, Load
from trainmover.testing.simulated_jobs.shape import Shape
from trainmover.testing.simulated_jobs.work import Work, is_due

__all__ = ["Rough", "RoughWork"]


@dataclass(frozen=True, slots=True)
class Rough:
    """The noise of a rough job.

    A pause of more than a step in one process is no noise: it stops the job for as long as a hang
    may last before it has to be named.

    Attributes:
        tail: Degrees of freedom of the Student t distribution of each rank's computing time; with
            3 its variance is just finite.
        spread: Scale of it, as a fraction of the computing time.
        stalls: Chance that a rank pauses in a step, for a time with a Pareto tail.
        stall_tail: Exponent of that tail; 1.5 has no variance.
        stall_steps: The shortest pause, in steps.
        wander: Standard deviation of each rank's lasting speed, which changes slowly.
        memory: How much of it stays from one step to the next.
        swing: Everybody gets so much slower and faster again, as a fraction.
        swing_steps: In so many steps.
        variation: Scale of how much steps differ for everybody alike: lengths of sequences, as a
            fraction; lognormal.
        checkpoint_every: Steps between checkpoints, of which each rank writes a part while the
            others wait; 0 for none.
        checkpoint_s: Median of the time that a part takes.
        afterwards: For four steps the first machine, which uploads it, is so much slower.
        evaluate_every: Steps between evaluations by every rank; 0 for none.
        evaluate_s: Median of how long one takes.
        log_every: Steps between those in which rank 0 reports; 0 for none.
        log_steps: The longest such report, in steps.
        refill_every: Steps between those in which some rank opens its next file of data; 0: never.
        refill_steps: The longest that takes, in steps.
        congestion: Scale of how the network's time differs, lognormal, with a memory of its own.
        lost: Chance that a machine's batches begin to be lost, for some two of them.
        late_s: Batches take so long on average, at most two fifths of a second.
    """

    tail: float = 3.0
    spread: float = 0.015
    stalls: float = 0.005
    stall_tail: float = 1.5
    stall_steps: float = 0.05
    wander: float = 0.01
    memory: float = 0.99
    swing: float = 0.05
    swing_steps: int = 400
    variation: float = 0.03
    checkpoint_every: int = 50
    checkpoint_s: float = 2.0
    afterwards: float = 0.15
    evaluate_every: int = 75
    evaluate_s: float = 3.0
    log_every: int = 10
    log_steps: float = 0.2
    refill_every: int = 40
    refill_steps: float = 0.5
    congestion: float = 0.2
    lost: float = 0.005
    late_s: float = 0.03


_MOST_STEPS: Final = 1.0
_UPLOAD_STEPS: Final = 4


class RoughWork(Work):
    """The work of a rough job, step by step.

    Args:
        shape: Who talks to whom.
        rough: The noise.
        epochs_at: Steps at which a new epoch begins.
        step_s: How long an undisturbed step takes, in seconds.
        network: The network's share of it.
        rng: Drawn from for each step.
    """

    def __init__(
        self,
        shape: Shape,
        rough: Rough,
        *,
        epochs_at: tuple[int, ...],
        step_s: float,
        network: float,
        rng: np.random.Generator,
    ) -> None:
        self._rough = rough
        super().__init__(
            shape, Healthy(epochs_at=epochs_at), step_s=step_s, network=network, rng=rng
        )
        self._speed = rough.wander * rng.standard_normal(shape.world)
        self._crowd = 0.0
        self._phase = float(rng.uniform(0, 2 * np.pi))

    def _noise(self, step: int) -> Load:
        world, rng, rough = self._shape.world, self._rng, self._rough
        own = self._step_s * (1 - self._network)
        compute = 0.95 * own * self._pace(step) * np.exp(self._wander()) * self._stages
        compute *= np.maximum(0.5, 1 + rough.spread * rng.standard_t(rough.tail, world))
        compute += np.minimum(self._stalls(), _MOST_STEPS) * self._step_s
        if is_due(step, rough.log_every):
            compute[0] += rng.uniform(0.2, 1.0) * rough.log_steps * self._step_s
        if any(is_due(step - since, rough.checkpoint_every) for since in range(_UPLOAD_STEPS)):
            compute[: self._shape.ranks_per_slot] *= 1 + rough.afterwards
        if step in {at + more for at in self._healthy.epochs_at for more in range(3)}:
            compute *= rng.uniform(1, 1.5, world)  # a joiner warms up, everybody a little
        return Load(self._outside(step), self._loading(step), compute, self._network_s())

    def _pace(self, step: int) -> float:
        """What everybody has in common."""
        rough = self._rough
        swing = 1 + rough.swing * np.sin(self._phase + 2 * np.pi * step / rough.swing_steps)
        return float(swing * np.exp(rough.variation * self._rng.standard_normal()))

    def _wander(self) -> Floats:
        """How much slower each rank is of late: a process with a memory, around nothing."""
        rough = self._rough
        fresh = np.sqrt(1 - rough.memory**2) * rough.wander
        self._speed = rough.memory * self._speed + fresh * self._rng.standard_normal(
            self._shape.world
        )
        return self._speed

    def _stalls(self) -> Floats:
        """Pauses of each rank, in steps."""
        rng, rough, world = self._rng, self._rough, self._shape.world
        struck = rng.random(world) < rough.stalls
        return struck * rough.stall_steps * (1 + rng.pareto(rough.stall_tail, world))

    def _outside(self, step: int) -> Floats:
        """Between the steps: in seconds, by rank."""
        rng, rough, world = self._rng, self._rough, self._shape.world
        outside = 0.02 * self._step_s * (1 - self._network) * rng.gamma(4, 0.25, world)
        if is_due(step, rough.checkpoint_every):
            outside += rough.checkpoint_s * rng.lognormal(0, 0.5, world)
        if is_due(step, rough.evaluate_every):
            outside += rough.evaluate_s * rng.lognormal(0, 0.1, world)
        return np.asarray(outside, float)

    def _loading(self, step: int) -> Floats:
        """Drawing the batch: in seconds, by rank."""
        rng, rough, world = self._rng, self._rough, self._shape.world
        loading = 0.02 * self._step_s * (1 - self._network) * rng.lognormal(0, 0.5, world)
        if is_due(step, rough.refill_every):
            longest = rough.refill_steps * self._step_s
            loading[rng.integers(world)] += rng.uniform(0.2, 1.0) * longest
        return np.asarray(loading, float)

    def _network_s(self) -> float:
        rough = self._rough
        fresh = np.sqrt(1 - rough.memory**2) * rough.congestion
        self._crowd = rough.memory * self._crowd + fresh * self._rng.standard_normal()
        return float(self._step_s * self._network * np.exp(self._crowd))
