"""What the steps of a simulated job ask of its ranks: noise, and whatever goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainmover.testing.simulated_jobs.injections import Healthy, Injection
from trainmover.testing.simulated_jobs.physics import NEVER, Load
from trainmover.testing.simulated_jobs.shape import Shape

__all__ = ["Work", "is_due"]


class Work:
    """The work of a job, step by step.

    Args:
        shape: Who talks to whom.
        healthy: The noise.
        step_s: How long an undisturbed step takes, in seconds.
        network: The network's share of it.
        rng: Drawn from once now and for each step.
    """

    def __init__(
        self,
        shape: Shape,
        healthy: Healthy,
        *,
        step_s: float,
        network: float,
        rng: np.random.Generator,
    ) -> None:
        self._shape = shape
        self._healthy = healthy
        self._step_s = step_s
        self._network = network
        self._rng = rng
        world = shape.world
        self._bias = 1 + healthy.imbalance * rng.uniform(-1, 1, world)
        self._stages = 1 + 0.15 * np.array(
            [shape.stage_of(rank) / max(1, shape.pp - 1) for rank in range(world)]
        )

    def of_step(self, step: int, injections: Sequence[Injection]) -> Load:
        """What a step asks of the ranks, with what goes wrong in it."""
        load = self._noise(step)
        for one in injections:
            if one.strikes(step):
                load = self._struck(load, one)
        return load

    def _noise(self, step: int) -> Load:
        """What a healthy step asks of the ranks."""
        world, healthy, rng = self._shape.world, self._healthy, self._rng
        own = self._step_s * (1 - self._network)
        compute = 0.95 * own * np.maximum(0.3, 1 + healthy.jitter * rng.standard_normal(world))
        compute *= self._bias * (1 + healthy.drift * step)
        compute *= 1 + healthy.batch_variation * rng.uniform(-1, 1)
        if self._shape.pp > 1:
            compute *= self._stages  # later stages have more to do, by design
        compute = np.where(rng.random(world) < healthy.spikes, compute * rng.uniform(2, 4), compute)
        outside = np.full(world, 0.02 * own)
        if is_due(step + 1, healthy.pauses_every):
            compute[rng.integers(world)] += healthy.pause_steps * self._step_s
        if is_due(step, healthy.checkpoint_every):
            outside[0] += healthy.checkpoint_s
        if is_due(step, healthy.evaluate_every):
            outside += healthy.evaluate_s
        if step in {at + more for at in healthy.epochs_at for more in range(3)}:
            compute *= rng.uniform(1, 1.5, world)  # a joiner warms up, everybody a little
        return Load(outside, np.full(world, 0.03 * own), compute, self._step_s * self._network)

    def _struck(self, load: Load, one: Injection) -> Load:  # noqa: PLR0911 - one case each
        """The load of a step that an injection strikes."""
        ranks = np.zeros(self._shape.world, bool)
        ranks[list(one.ranks)] = True
        if one.kind in {"crash", "silence"}:
            gone = self._shape.machine_of(one.ranks[0])
            everyone = range(self._shape.world)
            ranks = np.array([self._shape.machine_of(rank) == gone for rank in everyone])
        own = self._step_s * (1 - self._network)
        match one.kind:
            case "compute" | "host":
                return replace(load, compute_s=load.compute_s * np.where(ranks, one.factor, 1))
            case "loader":
                return replace(load, loader_s=load.loader_s + ranks * (one.factor - 1) * own)
            case "all_slow":
                return replace(
                    load,
                    compute_s=load.compute_s * one.factor,
                    loader_s=load.loader_s * one.factor,
                )
            case "slow_network" | "slow_link" | "slow_sender" | "slow_receiver":
                # A ring is as fast as its slowest link.
                return replace(load, network_s=load.network_s * one.factor)
            case "hang" | "frozen" | "crash" | "silence":
                return replace(load, compute_s=np.where(ranks, NEVER, load.compute_s))
            case "link_hang" | "mismatch":
                return replace(load, stuck_at=1)
            case _:
                return load


def is_due(step: int, every: int) -> bool:
    """Whether what happens every so many steps (0: never) happens in this one."""
    return every > 0 and step > 0 and step % every == 0
