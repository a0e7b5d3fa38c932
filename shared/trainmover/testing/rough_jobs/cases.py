"""Random rough jobs with known troubles, by class and seed; and random healthy ones.

The same (class, seed) always makes the same job. Classes, shapes and culprits are drawn as in
``simulated_jobs``; the noise is not.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from trainmover.testing.rough_jobs.job import RoughJob
from trainmover.testing.rough_jobs.work import Rough
from trainmover.testing.simulated_jobs.cases import healthy_job, troubled_job
from trainmover.testing.simulated_jobs.injections import Healthy, Injection
from trainmover.testing.simulated_jobs.job import SimulatedJob

__all__ = ["healthy_rough_job", "troubled_rough_job"]


def troubled_rough_job(name: str, seed: int) -> tuple[RoughJob, int]:
    """A job of a class of ``simulated_jobs.CLASSES``, and how many steps of it to look at.

    Raises:
        KeyError: There is no such class.
    """
    plain, steps = troubled_job(name, seed)
    rng = _rng(name, seed)
    injections = [_in_backward(one, rng) for one in plain.injections]
    return _rough(replace(plain, injections=injections), rng), steps


def healthy_rough_job(seed: int) -> RoughJob:
    """A job without trouble, on a rough host."""
    return _rough(healthy_job(seed), _rng("healthy", seed))


def _rng(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(f"rough {name}".encode()), seed])


def _in_backward(one: Injection, rng: np.random.Generator) -> Injection:
    """Half of all NaN are born in the backward pass: the loss of that step is still a number."""
    return replace(one, factor=2.0) if one.kind == "nan" and rng.random() < 0.5 else one


def _rough(plain: SimulatedJob, rng: np.random.Generator) -> RoughJob:
    """The same job under other noise."""
    long = max(1.0, 10 * plain.step_s)
    return RoughJob(
        shape=plain.shape,
        step_s=plain.step_s,
        network=plain.network,
        injections=plain.injections,
        healthy=Healthy(epochs_at=plain.healthy.epochs_at),
        seed=int(rng.integers(1 << 30)),
        linger_s=plain.linger_s,
        rough=Rough(
            tail=float(rng.uniform(2.5, 5.0)),
            spread=float(rng.uniform(0.003, 0.02)),
            stalls=float(rng.choice([0.0, 0.002, 0.01])),
            stall_tail=float(rng.uniform(1.2, 2.5)),
            wander=float(rng.uniform(0.0, 0.01)),
            memory=float(rng.choice([0.9, 0.99, 0.999])),
            swing=float(rng.uniform(0.0, 0.08)),
            swing_steps=int(rng.integers(100, 1000)),
            variation=float(rng.choice([0.0, 0.02, 0.08])),
            checkpoint_every=int(rng.integers(20, 100)),
            checkpoint_s=float(rng.uniform(0.2, min(20.0, long))),
            afterwards=float(rng.uniform(0.0, 0.3)),
            evaluate_every=int(rng.integers(25, 150)),
            evaluate_s=float(rng.uniform(0.5, min(60.0, long))),
            log_every=int(rng.choice([0, 10, 50])),
            log_steps=float(rng.uniform(0.05, 0.5)),
            refill_every=int(rng.integers(15, 80)),
            refill_steps=float(rng.uniform(0.1, 0.8)),
            congestion=float(rng.uniform(0.0, 0.3)),
            lost=float(rng.choice([0.0, 0.005, 0.01])),
            late_s=float(rng.uniform(0.005, 0.08)),
        ),
    )
