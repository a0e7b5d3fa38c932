"""Telemetry and facts that no honest machine sends: detectors go on, and believe none of it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hostile import facts

from trainmover.detection import BaseDetector
from trainmover.detection.guard import Alarm, Guarded
from trainmover.detection.membership import MembershipTracker
from trainmover.detection.registry import load
from trainmover.events.migration import JobFormed
from trainmover.job.topology import Layout, Member, Membership
from trainmover.telemetry.records import HEAD, LINK, OPS, PULSE, RECORD, STEP, Batch, Sections
from trainmover_detector.core import DetectorCore

MEMBERSHIP = Membership(
    epoch=1,
    layout=Layout(slots=4),
    members=tuple(Member(machine=f"w-{n}", generation=0, endpoints=("h:1",)) for n in range(4)),
)


class Blocks(BaseDetector):
    """Never comes back from a new membership."""

    def membership_changed(self, membership: Membership) -> None:
        while True:
            time.sleep(0.01)


class Counts(BaseDetector):
    """Notes that it was told."""

    told = 0

    def membership_changed(self, membership: Membership) -> None:
        self.told += 1


def test_a_detector_that_blocks_on_a_new_membership_stops_nobody_else() -> None:
    blocks, counts = Guarded("blocks", Blocks()), Counts()
    core = DetectorCore([blocks, Guarded("counts", counts)], alarm=Alarm(limit_s=0.1))
    core.on_fact(JobFormed(membership=MEMBERSHIP), 0.0)
    assert "did not return" in blocks.quarantined
    assert counts.told == 1


@pytest.mark.parametrize(
    "spans",
    [
        (range(2**40),),
        (range(0, 2**70, 2),),
        (range(-3, 2),),
        (range(2, 4),),
        (range(0),),
        (range(4), range(4)),
        tuple(range(4) for _ in range(9_000)),
    ],
)
def test_a_group_that_cannot_be_is_not_taken_in(spans: tuple[range, ...]) -> None:
    tracker = MembershipTracker()
    tracker.learn(JobFormed(membership=MEMBERSHIP))
    batch = Batch("demo", "w-1", 0, 1, np.zeros(0, RECORD), groups={1: spans, 2: (range(4),)})
    window = tracker.window(batch, 0.0)
    assert window is not None
    assert window.groups == {2: (range(4),)}


def wild(dtype: np.dtype, draw: st.DrawFn) -> np.ndarray:
    """Records whose fields hold anything that fits into them."""
    records = np.zeros(draw(st.integers(0, 4)), dtype)
    for name in dtype.names or ():
        kind = dtype[name]
        for index in range(len(records)):
            if name == "rank":
                records[name][index] = draw(st.sampled_from([1, 1, 1, 0, -1, 2**31 - 1]))
            elif kind.kind == "f":
                records[name][index] = draw(st.floats(width=32))
            else:
                edge = np.iinfo(kind)
                records[name][index] = draw(st.sampled_from([0, 1, 2, 7, edge.min, edge.max]))
    return records


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A batch of the second machine."""
    records = wild(RECORD, draw)
    more = Sections(
        records=records,
        open=wild(RECORD, draw),
        steps=wild(STEP, draw),
        links=wild(LINK, draw),
        pulses=wild(PULSE, draw),
        heads=wild(HEAD, draw),
    )
    spans = st.lists(
        st.tuples(st.integers(-2, 5), st.integers(-2, 2**33), st.integers(1, 3)), max_size=3
    )
    groups = {n: tuple(range(*one) for one in draw(spans)) for n in range(draw(st.integers(0, 3)))}
    return Batch("demo", "w-1", 0, draw(st.integers(0, 2)), records, more=more, groups=groups)


def honest(number: int, step: int) -> Batch:
    steps, pulses = np.zeros(1, STEP), np.zeros(1, PULSE)
    steps["rank"], steps["step"], steps["duration_ns"] = number, step, 10**9
    pulses["rank"], pulses["step"], pulses["phase"] = number, step + 1, 2
    running = np.zeros(1, RECORD)
    running["rank"], running["peer"], running["op"] = number, -1, OPS.index("allreduce")
    more = Sections(steps=steps, pulses=pulses, open=running)
    return Batch("demo", f"w-{number}", 0, 1, np.zeros(0, RECORD), more=more)


@settings(max_examples=60, deadline=None)
@given(said=st.lists(st.one_of(batches(), facts()), max_size=25))
def test_no_detector_ends_whatever_one_machine_says(said: list[object]) -> None:
    guarded = load()
    for each in guarded:
        each.clock = lambda: 0.0
    core = DetectorCore(guarded)
    core.on_fact(JobFormed(membership=MEMBERSHIP), 0.0)
    for number, one in enumerate(said):
        for machine in (0, 2, 3):
            core.on_batch(honest(machine, number), float(number))
        if isinstance(one, Batch):
            core.on_batch(one, float(number))
        else:
            core.on_fact(one, float(number))  # type: ignore[arg-type]
        core.tick(number + 0.5)
    for later in range(8):
        core.tick(len(said) + later / 5)
    assert {each.name: each.quarantined for each in guarded if each.quarantined} == {}
