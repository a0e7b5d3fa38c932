"""How good the built-in detectors are, what measuring costs, and how many ranks one process holds.

    python -m benchmarks.detection --json

Labelled troubles and healthy minutes are simulated (``trainmover.testing.simulated_jobs``, which no
detector knows): job ``k`` of a class is made from (class, k), so every run plays the same jobs.
``--noise rough`` plays them with the noise of ``trainmover.testing.rough_jobs``, made when the
detectors were done: heavy tails, drift, checkpoints, evaluations, batches lost in a row.
Classes that begin with ``real_`` are troubles in real jobs of four processes on this host: stopped,
throttled and killed processes, and a proxy that narrows or holds one direction of one link. There,
a finding that all ranks are slower alike counts neither way: other work on the host does that.
Everything together takes hours on two cores; ``--only`` runs parts, and prints their keys.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import Any

from benchmarks import detection_load, detection_real, detection_simulated
from benchmarks.common import run_program, spread
from trainmover.detection.evaluation.scoring import Score
from trainmover.testing.simulated_jobs import CLASSES

PARTS = ("simulated", "healthy", "real", "real_healthy", "instrumentation", "load")
RANKS = (8192, 16384, 32768, 65536)


def row(score: Score) -> dict[str, Any]:
    """A class as the result shows it."""
    data = score.as_data()
    return {
        "injections": data["labels"],
        "precision": data["precision"],
        "recall": data["recall"],
        "culprit_accuracy": data["culprit_accuracy"],
        "steps_to_detect_p95": data["steps_to_detect_p95"],
        "seconds_to_detect_p95": data["seconds_to_detect_p95"],
    }


def measure(parts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    minutes, wrong = 0.0, []
    if "simulated" in parts:
        scores, mistakes = detection_simulated.troubles(
            options.classes or list(CLASSES),
            noise=options.noise,
            seeds=range(options.first_seed, options.first_seed + options.seeds),
            workers=options.workers,
        )
        classes |= {name: row(score) for name, score in scores.items()}
        show(mistakes)
    if "real" in parts:
        chosen = options.real_classes or detection_real.CLASSES
        real = asyncio.run(detection_real.measure(chosen, times=options.times))
        classes |= {f"real_{name}": row(score) for name, score in real.items()}
    if classes:
        result["classes"] = classes
    if "healthy" in parts:
        simulated, mistakes, excused = detection_simulated.healthy(
            noise=options.noise,
            seeds=range(options.first_seed, options.first_seed + options.healthy_jobs),
            workers=options.workers,
        )
        minutes, wrong = minutes + simulated, wrong + mistakes
        result["all_slow_claims_in_rough_jobs"] = excused
    if "real_healthy" in parts:
        said = asyncio.run(detection_real.healthy(options.real_minutes))
        told = [words for kind, words in said if kind not in detection_real.EXCUSED]
        minutes, wrong = minutes + options.real_minutes, wrong + told
        result["all_slow_claims_on_a_shared_host"] = len(said) - len(told)
    if minutes:
        show(wrong)
        result |= {"healthy_minutes": minutes, "false_incidents": len(wrong)}
    if "instrumentation" in parts:
        blocks = ("--blocks", str(options.blocks))
        figures = run_program("clocked", *blocks, ranks=2)
        # A host that does other work drowns so few permille in the comparison of steps.
        result["instrumentation_step_ratio"] = round(figures["in_place"], 5)
        result["instrumentation"] = {
            "us_per_step": round(figures["in_place_us"], 1),
            "step_ms": round(figures["step_ms"], 2),
            "calls": figures["calls"],
            "compared_seconds": spread(figures["seconds"]),
            "compared_processor": spread(figures["processor"]),
        }
    if "load" in parts:
        reading = detection_load.reading_s(seconds=8)
        loads = [detection_load.measure(ranks, seconds=8, reading_s=reading) for ranks in RANKS]
        held = [load["ranks"] for load in loads if load["cpu_per_second"] <= 1.0]
        result["ranks_per_process"] = max(held, default=0)
        result["load"] = loads
    return result


def show(mistakes: list[str]) -> None:
    for mistake in mistakes:
        print("WRONG:", mistake, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; all if omitted")
    parser.add_argument("--classes", action="append", help="of simulated troubles; all if omitted")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--noise", choices=[*detection_simulated.NOISE], default="plain", help="of simulated jobs"
    )
    parser.add_argument("--seeds", type=int, default=23, help="jobs of each simulated class")
    parser.add_argument("--healthy-jobs", type=int, default=50, help="20 simulated minutes each")
    parser.add_argument("--real-classes", action="append", choices=detection_real.CLASSES)
    parser.add_argument("--times", type=int, default=4, help="real troubles of each class")
    parser.add_argument("--real-minutes", type=float, default=30.0)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="one line instead of a readable form")
    options = parser.parse_args()
    result = measure(options.only or list(PARTS), options)
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
