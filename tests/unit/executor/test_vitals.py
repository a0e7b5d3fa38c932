"""What the training thread notes about its steps."""

from __future__ import annotations

import time

import torch
from tests.unit.executor.test_clock import clock_and_reader
from torch import nn

from trainmover.telemetry.records import STEP, Flag, Phase
from trainmover_executor.report.step_timing import StepTiming


def one_step(timing: StepTiming, *, number: int, attempts: int = 1, moved: bool = False) -> None:
    timing.draw(lambda: (True, time.sleep(0.02)))
    for _ in range(attempts):
        timing.attempt()
        timing.enter(Phase.VOTE)
        timing.enter(Phase.BODY)
        timing.left()
    timing.committed(step=number, loss=0.5, moved=moved)


def test_a_step_tells_where_its_time_went() -> None:
    clock, reader = clock_and_reader(rank=2)
    timing = StepTiming(clock, [nn.Linear(4, 4)])
    one_step(timing, number=0)
    time.sleep(0.03)
    one_step(timing, number=1)
    clock.beat()
    sections, _ = reader.read()
    first, second = sections.steps
    assert first["flags"] == second["flags"] == Flag.LOSS | Flag.CHECKSUM
    assert second["loader_ns"] >= 20_000_000
    assert second["outside_ns"] >= 30_000_000
    assert second["duration_ns"] >= 50_000_000
    assert second["loss"] == 0.5
    assert sections.pulses["phase"].tolist() == [Phase.OUTSIDE]


def test_a_step_that_was_done_again_or_moved_says_so() -> None:
    clock, reader = clock_and_reader(rank=2)
    timing = StepTiming(clock, [nn.Linear(4, 4)])
    one_step(timing, number=0, attempts=2)
    one_step(timing, number=1, moved=True)
    one_step(timing, number=2)
    redone = reader.read()[0].steps["flags"] & Flag.REDONE
    assert redone.tolist() == [Flag.REDONE, Flag.REDONE, 0]


def test_what_ranks_do_between_steps_counts_to_the_coming_step() -> None:
    """Whenever the agent reads: else ranks would seem to do different things."""
    found = []
    for reads_between in (False, True):
        clock, reader = clock_and_reader()
        timing, group = StepTiming(clock, [nn.Linear(4, 4)]), clock.group("g", range(2))
        steps = []
        for number in range(2):
            clock.step = number
            group.leave(group.enter("allreduce", size=64))
            one_step(timing, number=number)
            if reads_between:
                steps += reader.read()[0].steps.tolist()
            group.leave(group.enter("barrier", size=0))  # an evaluation
        steps += reader.read()[0].steps.tolist()
        names = STEP.names or ()
        found.append([(s[names.index("ops")], s[names.index("signature")]) for s in steps])
    assert found[0] == found[1]
    assert [ops for ops, _ in found[0]] == [1, 2]


def test_replicas_have_the_same_checksums_until_a_bit_flips() -> None:
    models = [nn.Linear(300, 300) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    pairs = [clock_and_reader(rank=rank) for rank in range(2)]
    all_vitals = [
        StepTiming(clock, [model]) for (clock, _), model in zip(pairs, models, strict=True)
    ]
    blocks = 300 * 300 // 16_384 + 2
    for number in range(2 * blocks):
        if number == blocks:
            with torch.no_grad():
                models[1].weight[299, 299] += 1e-3
        for timing in all_vitals:
            one_step(timing, number=number)
    sums = [reader.read()[0].steps["checksum"].tolist() for _, reader in pairs]
    assert sums[0][:blocks] == sums[1][:blocks]
    differing = [a != b for a, b in zip(*sums, strict=True)][blocks:]
    assert differing.count(True) == 1
