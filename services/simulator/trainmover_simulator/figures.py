"""The papers' figures, from our own code: what they print, what comes here, how far that is off.

``ours`` is under the paper's assumptions, ``measured`` under what was measured here and published
elsewhere. Nothing is fitted: each input is a published time, and where a sentence can be read in
two ways, ``reading`` says which way was taken, and the other one has a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from trainmover_simulator.failures import DAY_S, MODELS, PLANNED, Failure, draw, evenly
from trainmover_simulator.network.c4 import WAITING, typical_gbps
from trainmover_simulator.network.contention import step_time
from trainmover_simulator.replay import Job, Outcome, histories, replay
from trainmover_simulator.scenario import MEASURED, PAPER, TWO_MINUTES, Scenario
from trainmover_simulator.systems import SYSTEMS, System

__all__ = ["NOT_GIVEN", "Figure", "figures"]

_DAYS: Final = 364.0
_WEEK_H: Final = 7 * 24
_MINUTE: Final = 60.0
_HOUR: Final = 3_600.0
_SEED: Final = 22

NOT_GIVEN: Final = (
    ("straggler of 20 % at 1,024 GPUs: 4.7 % lost", "the step time is not published"),
    ("memory during a migration", "nothing here models memory"),
    (
        "Fig. 11: without standby 3.48 and 2.1 times as fast as Megatron",
        "they are inputs: times of the system itself",
    ),
    ("Fig. 12, 15, 17, 18: parts of one migration", "they are inputs: times of the system itself"),
    (
        "C4: 31.19 % to 1.16 % of job time, 30 % less overhead",
        "C4 publishes shares of time and no failure rate that is known to us",
    ),
    (
        "1,024 GPUs: a standby slightly worse than Oobleck and Parcae",
        "no number; tests/paper/test_figures.py holds that it is worse",
    ),
)
"""Figures that no row gives, and why."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a paper.

    Attributes:
        name: What it is.
        source: Where it stands.
        paper: What the paper prints.
        ours: What the model gives under the paper's assumptions.
        measured: What it gives under ours; None where that is no question.
        reading: How the sentence was read, where it can be read in two ways.
    """

    name: str
    source: str
    paper: float
    ours: float
    measured: float | None = None
    reading: str = ""

    @property
    def deviation(self) -> float:
        """Ours against the paper's, as a share."""
        return self.ours / self.paper - 1


def figures(*, passed: Callable[[str], None] | None = None) -> tuple[Figure, ...]:
    """All figures, in the order of the paper.

    Args:
        passed: Told the name of each figure when it is there.
    """
    found = []
    for figure in _all():
        found.append(figure)
        if passed is not None:
            passed(figure.name)
    return tuple(found)


def _all() -> Iterator[Figure]:
    yield from _restarts()
    yield from _projection(PAPER, "")
    yield from _projection(TWO_MINUTES, ", with two minutes for all")
    parcae = ", shrinking and growing"
    yield from (one for one in _projection(_BOTH, parcae) if "Parcae" in one.name)
    yield from _rebalancing()
    yield _paths()


# -- how the numbers are made -----------------------------------------------------------------


@cache  # most figures compare with years that another one has, too
def _even(system: System, scenario: Scenario, gpus: int, mttf_s: float, planned: float) -> Outcome:
    """A year without chance: what the papers' formulas describe."""
    job = Job(gpus, _DAYS, standbys=int(system.standby_s is not None))
    return replay(system, scenario, job, evenly(mttf_s=mttf_s, planned=planned, days=_DAYS))


@cache
def _drawn(system: System, gpus: int) -> Outcome:
    """A year with chance, one standby as in the paper, and all that the paper leaves out."""
    job = Job(gpus, _DAYS, standbys=1)
    members, standbys = histories(MODELS["trainmover"], MEASURED, job, seed=_SEED)
    return replay(system, MEASURED, job, members, of_standbys=standbys)


# -- Fig. 2: restarts -------------------------------------------------------------------------

_FIG_2: Final = (
    (8_192, 216, 0.9794, 169),
    (16_384, 108, 0.9588, 675),
    (32_768, 54, 0.9176, 2_700),
    (65_536, 27, 0.8352, 10_800),
    (131_072, 14, 0.6821, 41_700),
)
"""GPUs, MTTF in minutes, ETTR, GPUs that are lost."""


def _restarts() -> Iterator[Figure]:
    # The figure counts the framework's 4.45 minutes alone.
    restart = replace(SYSTEMS["restart"], crash_s=4.45 * _MINUTE)
    measured = {gpus: _drawn(SYSTEMS["restart"], gpus).ettr for gpus, *_ in _FIG_2}
    ours = {
        gpus: _even(restart, PAPER, gpus, mttf * _MINUTE, 0.0).ettr for gpus, mttf, *_ in _FIG_2
    }
    for gpus, _, ettr, _ in _FIG_2:
        name = f"ETTR of restarts, {gpus:,} GPUs"
        yield Figure(name, "TrainMover Fig. 2", ettr, ours[gpus], measured[gpus])
    for gpus, _, _, lost in _FIG_2:
        yield Figure(
            f"GPUs lost to restarts, {gpus:,} GPUs",
            "TrainMover Fig. 2",
            lost,
            (1 - ours[gpus]) * gpus,
            (1 - measured[gpus]) * gpus,
        )
    yield _economics(restart)


def _economics(restart: System) -> Figure:
    gpus, mttf_s = 32_768, 54 * _MINUTE
    before = _even(restart, PAPER, gpus, mttf_s, 0.0)
    after = _even(SYSTEMS["trainmover"], PAPER, gpus, mttf_s, 0.0)
    drawn = [_drawn(SYSTEMS[name], gpus) for name in ("restart", "trainmover")]
    return Figure(
        "GPUs that one standby is worth, 32,768 GPUs",
        "TrainMover 9",
        2_400,
        _saved_h(before, after) / _WEEK_H,
        _saved_h(*drawn) / _WEEK_H,
    )


def _saved_h(before: Outcome, after: Outcome) -> float:
    return before.wasted_gpu_hours_per_week - after.wasted_gpu_hours_per_week


# -- Fig. 9: the projection -------------------------------------------------------------------

_MEGATRON: Final = replace(SYSTEMS["restart"], name="megatron", crash_s=300.0, planned_s=300.0)
"""Fig. 8: 300 s of initialisation at 1,024 GPUs; the projection takes nothing else."""

_FIG_9: Final = (
    (8_192, 3 * _HOUR, "trainmover-cold", 0.3591, "OSDI 8.2"),
    (8_192, 3 * _HOUR, "parcae", 0.8277, "OSDI 8.2"),
    (65_536, 27 * _MINUTE, "trainmover-cold", 0.55, "OSDI abstract, 8.2"),
    (131_072, 14 * _MINUTE, "trainmover-cold", 0.55, "OSDI 8.2"),
    (131_072, 14 * _MINUTE, "parcae", 0.88, "OSDI 8.2"),
    (65_536, 27 * _MINUTE, "restart", 0.91, "authors' blog"),
)
"""GPUs, MTTF in seconds, against whom, share of the waste that is saved, where it stands."""

_SAVED: Final = (
    ("parcae", 1.4e6, "OSDI abstract, 8.2"),
    ("trainmover-cold", 1.4e6, "OSDI abstract, 8.2"),
    ("restart", 2.1e6, "authors' blog"),
)
"""Against whom, GPU-hours a week; the paper does not say clearly against whom the first is."""

_BOTH: Final = replace(
    PAPER,
    grows_at_once=False,
    about=(*PAPER.about[:-2], "Parcae shrinks at once (21 s) and grows later (200 s)"),
)


def _projection(scenario: Scenario, what: str) -> Iterator[Figure]:
    how = scenario.about[-1]
    for gpus, mttf_s, other, paper, source in _FIG_9:
        before = _even(_rival(other), scenario, gpus, mttf_s, PLANNED)
        after = _even(SYSTEMS["trainmover"], scenario, gpus, mttf_s, PLANNED)
        yield Figure(
            f"waste saved by one standby against {SYSTEMS[other].title}, {gpus:,} GPUs{what}",
            f"TrainMover {source}",
            paper,
            1 - after.wasted_gpu_hours / before.wasted_gpu_hours,
            _measured_share(other, gpus),
            how,
        )
    for other, paper, source in _SAVED:
        gpus, mttf_s = 65_536, 27 * _MINUTE
        before = _even(_rival(other), scenario, gpus, mttf_s, PLANNED)
        after = _even(SYSTEMS["trainmover"], scenario, gpus, mttf_s, PLANNED)
        against = SYSTEMS[other].title
        yield Figure(
            f"GPU-hours a week saved against {against}, {gpus:,} GPUs{what}",
            f"TrainMover {source}",
            paper,
            _saved_h(before, after),
            _saved_h(_drawn(SYSTEMS[other], gpus), _drawn(SYSTEMS["trainmover"], gpus)),
            f"{how}; that it is against {against} is our reading",
        )


def _rival(name: str) -> System:
    return _MEGATRON if name == "restart" else SYSTEMS[name]


def _measured_share(other: str, gpus: int) -> float:
    before, after = _drawn(SYSTEMS[other], gpus), _drawn(SYSTEMS["trainmover"], gpus)
    return 1 - after.wasted_gpu_hours / before.wasted_gpu_hours


# -- Table 16: a rebalance every ten minutes --------------------------------------------------

_TABLE_16: Final = (
    (32, 7.9, 0.0, 0.99, 0.0),
    (128, 14.5, 190.0, 0.98, 0.50),
    (256, 15.5, 230.0, 0.98, 0.49),
    (512, 14.2, 260.0, 0.98, 0.44),
    (1_024, 16.6, 300.0, 0.97, 0.42),
)
"""GPUs, TrainMover's planned pause and Megatron's start in seconds (Fig. 8, 10), both ETTRs.

For 32 GPUs the longest pause of Fig. 10 is taken; Megatron's ETTR there is not known to us.
"""


def _rebalancing() -> Iterator[Figure]:
    for gpus, pause_s, _, ettr, _ in _TABLE_16:
        mover = replace(SYSTEMS["trainmover-cold"], planned_s=pause_s)
        yield _rebalanced("TrainMover", mover, gpus, ettr, "")
    for gpus, _, start_s, _, ettr in _TABLE_16:
        if ettr:
            restart = replace(SYSTEMS["restart"], planned_s=start_s)
            reading = "a restart is Megatron's start of Fig. 8, without what goes before it"
            yield _rebalanced("Megatron", restart, gpus, ettr, reading)


def _rebalanced(title: str, system: System, gpus: int, paper: float, reading: str) -> Figure:
    days = _DAYS / 13
    job = Job(gpus, days)
    every_s = 10 * _MINUTE
    count = round(days * DAY_S / every_s)
    moves = [Failure((number + 0.5) * every_s, (0,), "planned") for number in range(count)]
    crashes = draw(MODELS["rsc"], machines=job.machines, days=days, seed=_SEED)
    both = sorted((*moves, *crashes), key=lambda one: one.at_s)
    return Figure(
        f"ETTR of {title} with a rebalance every 10 minutes, {gpus:,} GPUs",
        "TrainMover 8.4, Fig. 16",
        paper,
        replay(system, PAPER, job, moves).ettr,
        replay(system, MEASURED, job, both).ettr,
        reading,
    )


# -- C4: paths of flows -----------------------------------------------------------------------


def _paths() -> Figure:
    hashed, planned = (typical_gbps("planned", paths) for paths in ("hashed", "planned"))
    return Figure(
        "throughput gained by planned paths, 22 B parameters on 512 GPUs",
        "C4 abstract",
        0.15,
        1 / step_time(WAITING, hashed, planned) - 1,
        reading="machines stand leaf by leaf before and after; four to a leaf is assumed",
    )
