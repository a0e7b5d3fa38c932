"""Random jobs with known troubles, by class and seed; and random healthy ones.

The same (class, seed) always makes the same job.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

import numpy as np

from trainmover.detection.evaluation.recording import Recorder
from trainmover.detection.evaluation.scoring import Label
from trainmover.events.migration import JobFormed
from trainmover.telemetry.records import Batch
from trainmover.testing.simulated_jobs.injections import Healthy, Injection, Kind, Truth
from trainmover.testing.simulated_jobs.job import SimulatedJob
from trainmover.testing.simulated_jobs.shape import Shape

__all__ = ["CLASSES", "healthy_job", "label_of", "record_job", "troubled_job"]

_FACTORS: Final[dict[str, tuple[Kind, float]]] = {
    "compute_10": ("compute", 1.1),
    "compute_20": ("compute", 1.2),
    "compute_2x": ("compute", 2.0),
    "host_2x": ("host", 2.0),
    "loader_stalls": ("loader", 1.6),
    "slow_link": ("slow_link", 4.0),
    "slow_sender": ("slow_sender", 4.0),
    "slow_receiver": ("slow_receiver", 4.0),
    "hang_process": ("hang", 1.0),
    "hang_frozen": ("frozen", 1.0),
    "hang_link": ("link_hang", 1.0),
    "crash": ("crash", 1.0),
    "crash_by_links": ("crash", 3.0),
    "silent_host": ("silence", 1.0),
    "all_slow": ("all_slow", 1.4),
    "slow_network": ("slow_network", 9.0),
    "mismatch": ("mismatch", 1.0),
    "nan": ("nan", 1.0),
    "corruption": ("corruption", 1.0),
    "notice": ("notice", 1.0),
}

CLASSES: Final = (*_FACTORS, "two_at_once", "compute_20_short_steps")
"""Names of all classes of trouble."""

_REPLICAS: Final = (Shape(3), Shape(4), Shape(6), Shape(8, 2), Shape(16), Shape(4, 4))
_MESHES: Final = (Shape(4, mesh=True), Shape(6, mesh=True), Shape(8, 2, mesh=True))
_HYBRIDS: Final = (Shape(4, 2, tp=2, pp=2), Shape(8, 1, pp=4), Shape(4, 4, tp=4), Shape(8, pp=2))
_EXCUSES: Final = {
    # The whole job waits for the slow part, which is true as well.
    "slow_link": frozenset({"degraded"}),
    "slow_sender": frozenset({"degraded"}),
    "slow_receiver": frozenset({"degraded"}),
}
_FROM_STEP: Final = 64
_LONG_S: Final = 4.0
_MANY, _FEW = 16, 6
"""Machines of a job at the most; jobs of long steps say much, and are kept small."""


def _rng(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(name.encode()), seed])


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Evenly spread over orders of magnitude."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def troubled_job(name: str, seed: int) -> tuple[SimulatedJob, int]:
    """A job of a class, and how many steps of it to look at."""
    rng = _rng(name, seed)
    short = name == "compute_20_short_steps"
    step_s = _between(rng, 0.05, 0.2) if short else _between(rng, 0.2, 30.0)
    shape = _shape(name, rng, slots=_MANY if step_s < _LONG_S else _FEW)
    step = int(rng.integers(_FROM_STEP, _FROM_STEP + 16))
    if name == "two_at_once":
        injections = _two(shape, step, rng)
    else:
        kind, factor = _FACTORS["compute_20" if short else name]
        injections = [_injection(kind, factor, shape, step, rng)]
    healthy = Healthy(
        jitter=float(rng.uniform(0.005, 0.025)),
        imbalance=float(rng.uniform(0, 0.01)),
        pauses_every=int(rng.integers(20, 60)),
        lost=float(rng.choice([0.0, 0.02])),
        repeated=float(rng.choice([0.0, 0.05])),
    )
    job = SimulatedJob(
        shape=shape,
        step_s=step_s,
        healthy=healthy,
        injections=injections,
        seed=int(rng.integers(1 << 30)),
        linger_s=max(30.0, 8 * step_s),
    )
    return job, step + (140 if name == "compute_10" else 70) * (4 if short else 1)


def _shape(name: str, rng: np.random.Generator, *, slots: int) -> Shape:
    if name in {"slow_sender", "slow_receiver"}:
        choice: tuple[Shape, ...] = _MESHES  # a ring has one link on each side: see slow_link
    elif name == "slow_link":
        choice = (*_MESHES, *_REPLICAS[2:5])
    elif name in {"mismatch", "corruption", "nan", "all_slow", "slow_network"}:
        choice = _REPLICAS
    else:
        choice = (*_REPLICAS, *_HYBRIDS)
    choice = tuple(shape for shape in choice if shape.slots <= slots)
    return choice[int(rng.integers(len(choice)))]


def _injection(
    kind: Kind, factor: float, shape: Shape, step: int, rng: np.random.Generator
) -> Injection:
    if kind in {"slow_link", "link_hang"}:
        between = [
            (source, target)
            for source, target, group in shape.links
            if shape.machine_of(source) != shape.machine_of(target)
            and (kind == "slow_link" or group.startswith("dp"))
        ]
        source, target = between[int(rng.integers(len(between)))]
        return Injection(kind, step, factor=factor, link=(source, target))
    if kind in {"slow_sender", "slow_receiver"}:
        slot = int(rng.integers(shape.slots))
        first = slot * shape.ranks_per_slot
        return Injection(kind, step, tuple(range(first, first + shape.ranks_per_slot)), factor)
    if kind in {"all_slow", "slow_network"}:
        return Injection(kind, step, factor=factor)
    return Injection(kind, step, (int(rng.integers(shape.world)),), factor)


def _two(shape: Shape, step: int, rng: np.random.Generator) -> list[Injection]:
    slots = rng.choice(shape.slots, 2, replace=False)
    ranks = [int(slot) * shape.ranks_per_slot for slot in slots]
    factors = (2.0, 2.0) if rng.random() < 0.5 else (1.5, 2.2)
    return [
        Injection("compute", step, (rank,), factor)
        for rank, factor in zip(ranks, factors, strict=True)
    ]


def label_of(truth: Truth) -> Label:
    """What a recording of the job would be labelled with."""
    return Label(
        kind=truth.kind,
        since_s=truth.since_s,
        machine=truth.machine,
        link=truth.link,
        since_step=truth.since_step,
        excuses=_EXCUSES.get(truth.injected, frozenset()),
    )


def healthy_job(seed: int) -> SimulatedJob:
    """A job without trouble and with plenty of noise."""
    rng = _rng("healthy", seed)
    shapes = (*_REPLICAS, *_MESHES, *_HYBRIDS)
    step_s = _between(rng, 0.05, 60.0)
    long = max(1.0, 20 * step_s)
    return SimulatedJob(
        shape=shapes[int(rng.integers(len(shapes)))],
        step_s=step_s,
        network=float(rng.uniform(0.05, 0.4)),
        healthy=Healthy(
            jitter=float(rng.choice([0.005, 0.02, 0.05, 0.15, 0.3])),
            imbalance=float(rng.uniform(0, 0.025)),
            spikes=float(rng.choice([0.0, 0.005, 0.02])),
            pauses_every=int(rng.choice([0, 13, 40])),
            pause_steps=float(rng.uniform(0.3, 1.0)),
            checkpoint_every=int(rng.choice([0, 50, 120])),
            checkpoint_s=float(rng.uniform(1, min(60.0, long))),
            evaluate_every=int(rng.choice([0, 75, 200])),
            evaluate_s=float(rng.uniform(1, min(90.0, long))),
            drift=float(rng.choice([0.0, 1e-4])),
            batch_variation=float(rng.choice([0.0, 0.1, 0.3])),
            lost=float(rng.choice([0.0, 0.01, 0.05])),
            repeated=float(rng.choice([0.0, 0.05])),
            epochs_at=tuple(int(s) for s in rng.integers(20, 400, int(rng.integers(0, 3)))),
        ),
        seed=int(rng.integers(1 << 30)),
    )


def record_job(
    job: SimulatedJob, path: Path, *, steps: int, name: str = "simulated"
) -> list[Truth]:
    """Play ``steps`` steps of ``job`` into a recording at ``path``.

    Returns:
        What is wrong in it, as its labels say.

    Raises:
        OSError: The file cannot be written.
    """
    with Recorder(path) as recorder:
        for frame in job.frames(steps=steps):
            if frame.membership is not None:
                recorder.fact(frame.now_s, JobFormed(membership=frame.membership))
            for fact in frame.facts:
                recorder.fact(frame.now_s, fact)
            for one in frame.windows:
                batch = Batch(name, one.machine, 0, one.epoch, one.records, 0, one.more, one.groups)
                recorder.batch(frame.now_s, batch)
        for truth in job.truths:
            recorder.label(label_of(truth))
    return job.truths
