"""Each class of trouble in a small simulated job; ``benchmarks/detection.py`` plays hundreds."""

from __future__ import annotations

import pytest

from trainmover.detection import Finding
from trainmover.detection.evaluation.replay import Player
from trainmover.detection.evaluation.scoring import score
from trainmover.detection.registry import class_of, find, make
from trainmover.testing.simulated_jobs import Injection, Shape, SimulatedJob, label_of

DETECTORS = ("degraded", "external", "hang", "links", "liveness", "numeric", "straggler")
EXCUSED = {"degraded"}
"""A job that waits for a slow connection is slower as a whole, which is true as well."""


def found(job: SimulatedJob, *, steps: int) -> list[Finding]:
    points = find()
    player = Player({name: make(class_of(points[name])) for name in DETECTORS})
    for frame in job.frames(steps=steps):
        job.tell(player, frame)
    assert not player.errors, player.errors
    scores = score([label_of(truth) for truth in job.truths], player.findings)
    assert all(each.recall == each.culprit_accuracy == 1 for each in scores.values()), scores
    return [one.finding for one in player.findings if one.finding.kind not in EXCUSED]


@pytest.mark.parametrize(
    ("trouble", "kind", "machine"),
    [
        (Injection("compute", 64, (2,), 1.2), "straggler", "w-2"),
        (Injection("loader", 64, (1,), 1.6), "straggler", "w-1"),
        (Injection("hang", 64, (3,)), "hang", "w-3"),
        (Injection("frozen", 64, (0,)), "hang", "w-0"),
        (Injection("crash", 64, (1,)), "machine_failed", "w-1"),
        (Injection("silence", 64, (2,)), "machine_failed", "w-2"),
        (Injection("mismatch", 64, (1,)), "mismatch", "w-1"),
        (Injection("nan", 64, (3,)), "numeric", "w-3"),
        (Injection("corruption", 64, (2,)), "numeric", "w-2"),
    ],
)
def test_a_culprit_is_named_and_nobody_else(trouble, kind, machine) -> None:
    job = SimulatedJob(Shape(4), injections=[trouble], seed=4)
    assert {(one.kind, one.machine) for one in found(job, steps=110)} == {(kind, machine)}


@pytest.mark.parametrize(("kind", "rank"), [("slow_sender", 2), ("slow_receiver", 1)])
def test_the_side_of_a_machine_is_named_before_any_link_of_it(kind, rank) -> None:
    job = SimulatedJob(Shape(6, mesh=True), injections=[Injection(kind, 64, (rank,), 4.0)], seed=2)
    said = found(job, steps=110)
    assert {(one.kind, one.machine, one.link) for one in said} == {("link_slow", f"w-{rank}", None)}


def test_one_slow_link_is_named_with_its_direction() -> None:
    trouble = Injection("slow_link", 64, factor=4.0, link=(3, 4))
    job = SimulatedJob(Shape(6), injections=[trouble], seed=2)
    assert {(one.kind, one.machine, one.link) for one in found(job, steps=110)} == {
        ("link_slow", None, (3, 4))
    }


def test_when_all_are_slower_nobody_is_named() -> None:
    job = SimulatedJob(Shape(4), injections=[Injection("all_slow", 80, factor=1.4)], seed=2)
    assert found(job, steps=130) == []
