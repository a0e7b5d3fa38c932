"""Figures of the TrainMover paper, from our own model: which come within 5 %, and which do not.

Those that do not come are listed with how far they are off, so that nobody tunes them in secret.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from trainmover_simulator.failures import PLANNED, evenly
from trainmover_simulator.figures import Figure, figures
from trainmover_simulator.replay import Job, replay
from trainmover_simulator.scenario import PAPER
from trainmover_simulator.systems import SYSTEMS

COLD = "waste saved by one standby against TrainMover without standbys"
PARCAE = "waste saved by one standby against Parcae"
RESTART = "waste saved by one standby against restart from checkpoint"
HOURS = "GPU-hours a week saved against"
REBALANCED = "with a rebalance every 10 minutes"
SIZES = ("8,192", "16,384", "32,768", "65,536", "131,072")

WITHIN = (
    *(f"ETTR of restarts, {size} GPUs" for size in SIZES),
    *(f"GPUs lost to restarts, {size} GPUs" for size in SIZES),
    "GPUs that one standby is worth, 32,768 GPUs",
    *(f"{COLD}, {size} GPUs" for size in ("8,192", "65,536", "131,072")),
    *(f"{PARCAE}, {size} GPUs" for size in ("8,192", "131,072")),
    *(f"{PARCAE}, {size} GPUs, shrinking and growing" for size in ("8,192", "131,072")),
    f"{RESTART}, 65,536 GPUs",
    *(
        f"{HOURS} {other}, 65,536 GPUs{how}"
        for other in ("Parcae", "restart from checkpoint")
        for how in ("", ", with two minutes for all")
    ),
    *(
        f"ETTR of TrainMover {REBALANCED}, {size} GPUs"
        for size in ("32", "128", "256", "512", "1,024")
    ),
)
OFF = {
    f"{COLD}, 8,192 GPUs, with two minutes for all": -0.724,
    f"{COLD}, 65,536 GPUs, with two minutes for all": -0.718,
    f"{COLD}, 131,072 GPUs, with two minutes for all": -0.717,
    f"{PARCAE}, 8,192 GPUs, with two minutes for all": -0.359,
    f"{PARCAE}, 131,072 GPUs, with two minutes for all": -0.363,
    f"{RESTART}, 65,536 GPUs, with two minutes for all": -0.270,
    f"{HOURS} TrainMover without standbys, 65,536 GPUs": -0.861,
    f"{HOURS} TrainMover without standbys, 65,536 GPUs, with two minutes for all": -0.861,
    f"{HOURS} Parcae, 65,536 GPUs, shrinking and growing": 0.081,
    f"ETTR of Megatron {REBALANCED}, 128 GPUs": 0.367,
    f"ETTR of Megatron {REBALANCED}, 256 GPUs": 0.259,
    f"ETTR of Megatron {REBALANCED}, 512 GPUs": 0.288,
    f"ETTR of Megatron {REBALANCED}, 1,024 GPUs": 0.190,
    "throughput gained by planned paths, 22 B parameters on 512 GPUs": 0.176,
}


@cache
def found() -> dict[str, Figure]:
    return {one.name: one for one in figures()}


@pytest.mark.parametrize("name", WITHIN)
def test_it_comes_within_five_percent(name: str) -> None:
    assert abs(found()[name].deviation) <= 0.05


@pytest.mark.parametrize(("name", "off"), OFF.items())
def test_it_does_not_come(name: str, off: float) -> None:
    assert found()[name].deviation == pytest.approx(off, abs=0.002)


def test_every_figure_is_judged() -> None:
    assert set(found()) == {*WITHIN, *OFF}
    assert all(one.source for one in found().values())


def test_what_was_measured_leaves_less_of_the_claim() -> None:
    """The headline against TrainMover without standbys: with one standby it is out too often."""
    headline = found()[f"{COLD}, 65,536 GPUs"]
    assert headline.measured is not None
    assert headline.measured < 0.5 * headline.ours


@pytest.mark.parametrize("other", ["oobleck", "parcae"])
def test_at_1024_gpus_a_standby_costs_more_than_it_saves(other: str) -> None:
    """TrainMover 8.2, in words; MTTF of RSC at this size, 7.9 h."""
    failures = evenly(mttf_s=7.9 * 3_600, planned=PLANNED, days=364)
    mover = replay(SYSTEMS["trainmover"], PAPER, Job(1_024, 364, 1), failures)
    theirs = replay(SYSTEMS[other], PAPER, Job(1_024, 364), failures)
    cold = replay(replace(SYSTEMS["trainmover"], standby_s=None), PAPER, Job(1_024, 364), failures)
    assert mover.wasted_gpu_hours > theirs.wasted_gpu_hours
    assert cold.wasted_gpu_hours < theirs.wasted_gpu_hours
