"""Built-in detectors on simulated jobs: labelled troubles, and healthy minutes."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Mapping

from trainmover.detection import Detector
from trainmover.detection.evaluation.replay import Player
from trainmover.detection.evaluation.scoring import Score, TimedFinding, score
from trainmover.detection.registry import class_of, find, make
from trainmover.testing.rough_jobs import healthy_rough_job, troubled_rough_job
from trainmover.testing.simulated_jobs import SimulatedJob, healthy_job, label_of, troubled_job

DETECTORS = ("degraded", "external", "hang", "links", "liveness", "numeric", "straggler")
NOISE = {
    "plain": (troubled_job, healthy_job),
    "rough": (troubled_rough_job, healthy_rough_job),
}
"""What makes jobs with troubles, and healthy ones, by the kind of their noise."""
EXCUSED = {"plain": frozenset[str](), "rough": frozenset({"degraded"})}
"""A rough job's network and pace wander: at times all ranks are slower alike, as is said then."""
HEALTHY_MINUTES = 20
"""Of one simulated job."""
_EVERY = 20
AFTERWARDS_STEPS = 24
AFTERWARDS_S = 20.0
"""For so long after everything was found wrong findings still count; then the next job's turn."""


def detectors() -> Mapping[str, Detector]:
    """Every built-in detector with its default settings."""
    points = find()
    return {name: make(class_of(points[name])) for name in DETECTORS}


def play(job: SimulatedJob, *, steps: int, seconds: float = float("inf")) -> list[TimedFinding]:
    """The incidents that the detectors would open."""
    player = Player(detectors())
    found_at: tuple[int, float] | None = None
    for frame in job.frames(steps=steps):
        job.tell(player, frame)
        if frame.now_s > seconds:
            break
        if found_at is None and _all_found(job, player.findings):
            found_at = frame.step, frame.now_s
        if found_at is not None and frame.now_s > found_at[1] + AFTERWARDS_S:
            stands_still = frame.step == found_at[0]
            if stands_still or frame.step > found_at[0] + AFTERWARDS_STEPS:
                break
    if player.errors:
        raise RuntimeError(f"a detector raised: {player.errors}")
    return player.findings


def _all_found(job: SimulatedJob, findings: list[TimedFinding]) -> bool:
    labels = [label_of(truth) for truth in job.truths]
    return len(labels) == len(job.injections) > 0 and all(
        any(found.fits(label) and found.names(label) for found in findings) for label in labels
    )


def one_trouble(case: tuple[str, str, int]) -> tuple[str, dict[str, Score], list[str]]:
    noise, name, seed = case
    job, steps = NOISE[noise][0](name, seed)
    findings = play(job, steps=steps)
    scores = score([label_of(truth) for truth in job.truths], findings)
    wrong = []
    if any(s.precision < 1 or s.recall < 1 or s.culprit_accuracy < 1 for s in scores.values()):
        shape = job.shape
        shown = [
            (
                round(c.at_s, 1),
                c.step,
                c.finding.kind,
                c.finding.machine,
                c.finding.link,
                c.finding.summary,
            )
            for c in findings
        ]
        wrong.append(
            f"{noise} {name} seed {seed} {shape} step {job.step_s:.3f} s: {job.truths} but {shown}"
        )
    return name, scores, wrong


def one_healthy(case: tuple[str, int]) -> tuple[float, list[str], int]:
    """(minutes, incidents that should not have been, how often it was said that all are slow)."""
    noise, seed = case
    job = NOISE[noise][1](seed)
    seconds = HEALTHY_MINUTES * 60
    findings = play(job, steps=1 << 40, seconds=seconds)
    shown = [
        f"{noise} healthy seed {seed} {job.shape} step {job.step_s:.3f} s: "
        f"{found.at_s:.1f} s, step {found.step}: {found.finding.kind} {found.finding.summary}"
        for found in findings
        if found.finding.kind not in EXCUSED[noise]
    ]
    return HEALTHY_MINUTES, shown, len(findings) - len(shown)


def troubles(
    names: list[str], *, noise: str, seeds: range, workers: int
) -> tuple[dict[str, Score], list[str]]:
    """Scores by class, over all kinds of findings: a wrong one of any kind counts against it."""
    cases = [(noise, name, seed) for name in names for seed in seeds]
    totals = {name: Score() for name in names}
    wrong: list[str] = []
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for done, (name, scores, mistakes) in enumerate(pool.imap_unordered(one_trouble, cases), 1):
            if done % _EVERY == 0:
                print(f"{done} of {len(cases)} jobs", file=sys.stderr, flush=True)
            for each in scores.values():
                totals[name].add(each)
            wrong += mistakes
    return totals, wrong


def healthy(*, noise: str, seeds: range, workers: int) -> tuple[float, list[str], int]:
    """(simulated minutes, incidents that should not have been, excused ones)."""
    cases = [(noise, seed) for seed in seeds]
    wrong: list[str] = []
    minutes, excused = 0.0, 0
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for took, mistakes, more in pool.imap_unordered(one_healthy, cases):
            minutes += took
            wrong += mistakes
            excused += more
            for mistake in mistakes:
                print("WRONG:", mistake, file=sys.stderr)
            print(f"{minutes:g} minutes, {len(wrong)} wrong", file=sys.stderr, flush=True)
    return minutes, wrong, excused
