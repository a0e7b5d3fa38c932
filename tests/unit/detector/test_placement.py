"""Where stages of detection run: the choice, what agents do of it, and that findings stay equal."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.detection_load import Fleet
from benchmarks.placement import answered_s
from benchmarks.placement_verdicts import (
    SMALL,
    alternating,
    at_agents,
    central,
    findings,
    placed,
    recorded,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.detection import BaseDetector, CollectiveWindow
from trainmover.detection.evaluation.replay import play
from trainmover.detection.guard import Guarded
from trainmover.events.incident import AnalysisPlaced
from trainmover.events.migration import JobFormed
from trainmover.telemetry.records import (
    ACTIVITY,
    RECORD,
    STEP,
    Batch,
    Sections,
    decode_batch,
    encode_batch,
)
from trainmover.telemetry.stages import OPERATIONS, STAGES, MachineStages, count_operations
from trainmover.testing.simulated_jobs import CLASSES, troubled_job
from trainmover_detector.core import DetectorCore
from trainmover_detector.detectors.hang import HangDetector
from trainmover_detector.detectors.links import LinksDetector
from trainmover_detector.detectors.straggler import StragglerDetector
from trainmover_detector.placement.chooser import Chooser
from trainmover_detector.placement.costs import Traffic, allowed_by, cheapest, estimate

LARGE = Traffic(machines=8192, ranks=8, batches_s=1.0, operations_s=480.0)
MOST = 0.002


def batch(*ranks: int, steps: int = 1, epoch: int = 1, machine: str = "w-0") -> Batch:
    """A batch with one operation for each of ``ranks``."""
    records = np.zeros(len(ranks), RECORD)
    records["rank"] = ranks
    done = np.zeros(steps, STEP)
    done["rank"] = ranks[0] if ranks else 0
    return Batch("j", machine, 0, epoch, records, more=Sections(records=records, steps=done))


def window(membership, machine: str, *, sent: int = 0, counted: int = 0) -> CollectiveWindow:
    activity = np.zeros(1 if counted else 0, ACTIVITY)
    activity["operations"] = counted
    more = Sections(records=np.zeros(sent, RECORD), activity=activity)
    return CollectiveWindow(machine, 1, membership, more.records, 0.0, more)


# -- the stage itself ----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 7)))
def test_operations_are_counted_for_each_rank(ranks):
    counted = decode_batch(encode_batch(count_operations(batch(*ranks))))
    assert len(counted.records) == 0
    found = dict(counted.more.activity.tolist())
    assert found == {rank: ranks.count(rank) for rank in ranks}
    assert len(counted.more.steps) == 1


def test_an_agent_that_was_told_nothing_sends_everything():
    said = batch(0, 1)
    assert MachineStages().apply(said) is said


def test_an_agent_does_not_do_half_of_what_it_does_not_know():
    stages = MachineStages()
    stages.place([OPERATIONS, "of a later version"])
    assert not stages.run
    assert len(stages.apply(batch(0)).records) == 1


def test_operations_are_sent_until_the_first_step_of_an_epoch():
    stages = MachineStages()
    stages.place(STAGES)
    assert len(stages.apply(batch(0, steps=0)).records) == 1
    assert len(stages.apply(batch(0)).records) == 0
    assert len(stages.apply(batch(0, steps=0)).records) == 0
    assert len(stages.apply(batch(0, steps=0, epoch=2)).records) == 1


# -- which stages agents may run -----------------------------------------------------------------


class Undeclared(BaseDetector):
    """A plug-in of before: nobody knows what it reads."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def observe(self, window):
        self.seen.append(window.records.tobytes())
        return ()


class OfSteps(Undeclared):
    reads = frozenset({"steps"})


class OfOperations(Undeclared):
    reads = frozenset({"records"})


class OfFacts(BaseDetector):
    """Looks at no telemetry."""


class OwnStraggler(StragglerDetector):
    """A plug-in that builds on a detector of ours, and looks at more than that."""

    def observe(self, window):
        assert len(window.records)
        return super().observe(window)


class OwnSettings(StragglerDetector):
    """One that looks at nothing else than ours does."""

    def tick(self, now_s):
        return super().tick(now_s)


def reads(*detectors) -> tuple[str, ...]:
    return allowed_by([Guarded("one", detector).reads for detector in detectors])


def test_what_a_plugin_reads_is_respected():
    ours = (HangDetector(), LinksDetector(), StragglerDetector())
    assert reads(*ours) == STAGES
    assert reads(*ours, OfSteps(), OfFacts()) == STAGES
    assert reads(*ours, Undeclared()) == ()
    assert reads(*ours, OfOperations()) == ()


def test_what_a_detector_of_ours_reads_says_nothing_of_a_plugin_that_builds_on_it():
    assert reads(StragglerDetector()) == STAGES
    assert reads(OwnSettings()) == STAGES
    assert reads(OwnStraggler()) == ()


def test_one_that_is_not_asked_any_more_needs_nothing():
    guarded = Guarded("one", Undeclared())
    assert allowed_by([guarded.reads]) == ()
    guarded.quarantined = "it raised"
    assert allowed_by([guarded.reads]) == STAGES


def test_a_plugin_sees_all_operations_of_a_large_job(membership_of):
    membership = membership_of(2)
    plugin = Undeclared()
    core = DetectorCore([Guarded("one", plugin)])
    core.on_fact(JobFormed(membership=membership), 0.0)
    for second in range(20):
        core.on_batch(replace(batch(*[0] * 5000), machine="w-0"), second)
        assert not core.tick(second)
    assert all(plugin.seen)


# -- the choice ----------------------------------------------------------------------------------


def test_a_large_job_is_counted_by_agents_and_a_small_one_is_not_worth_it():
    best = cheapest(LARGE, allowed=STAGES, most_agent_cpu=MOST)
    assert best.at_agents == STAGES
    assert best.detector_cpu < estimate((), LARGE).detector_cpu
    assert best.bytes_s < estimate((), LARGE).bytes_s
    assert cheapest(LARGE, allowed=(), most_agent_cpu=MOST).at_agents == ()


def test_agents_are_not_given_more_than_their_share():
    busy = replace(LARGE, operations_s=1e9)
    best = cheapest(busy, allowed=STAGES, most_agent_cpu=MOST)
    central_ratio = estimate((), busy).agent_cpu_ratio
    assert best.agent_cpu_ratio <= max(MOST, central_ratio)


class Played:
    """A chooser, and machines that do what it says."""

    def __init__(self, membership, *, follow: bool = True) -> None:
        self.chooser = Chooser(lambda: STAGES)
        self.membership = membership
        self.follow = follow
        self.stages: tuple[str, ...] = ()
        self.now_s = 0.0

    def play(self, seconds: int, *, operations: int, claims: dict[str, int] | None = None):
        """Let time pass with so many operations of each machine; what was said, and when."""
        said = []
        for _ in range(seconds):
            for member in self.membership.members:
                count = (claims or {}).get(member.machine, operations)
                kind = "counted" if self.stages or member.machine in (claims or {}) else "sent"
                self.chooser.take(window(self.membership, member.machine, **{kind: count}))
            self.now_s += 1.0
            for fact in self.chooser.look(self.now_s):
                said.append((self.now_s, fact))
                self.stages = fact.at_agents if self.follow else ()
        return said


@pytest.fixture
def many(membership_of):
    return membership_of(64)


FEW, MUCH = 100, 20_000


def test_the_choice_follows_traffic_both_ways_within_ten_seconds(many):
    job = Played(many)
    assert job.play(60, operations=FEW) == []
    ((up_s, up),) = job.play(30, operations=MUCH)
    assert (up.at_agents, up_s - 60 <= 10) == (STAGES, True)
    assert up.detector_cpu < up.detector_cpu_central
    ((down_s, down),) = job.play(30, operations=FEW)
    assert (down.at_agents, down_s - 90 <= 10) == ((), True)


def test_a_burst_of_a_second_changes_nothing(many):
    job = Played(many)
    job.play(10, operations=FEW)
    assert job.play(1, operations=MUCH) == []
    assert job.play(20, operations=FEW) == []


def test_traffic_between_the_thresholds_changes_nothing(many):
    job = Played(many)
    between = MUCH // 4
    steady = job.play(60, operations=MUCH)
    assert len(steady) == 1
    for _ in range(10):
        assert job.play(4, operations=MUCH) + job.play(4, operations=between) == []


def test_traffic_that_comes_and_goes_is_given_up_ever_more_slowly(many):
    job = Played(many)
    said = []
    for _ in range(40):
        said += job.play(8, operations=MUCH) + job.play(8, operations=FEW)
    assert len(said) <= 10


def test_machines_that_claim_much_move_nothing(many):
    job = Played(many)
    liars = {f"w-{slot}": 1 << 30 for slot in range(31)}
    for _, fact in job.play(60, operations=FEW, claims=liars):
        assert fact.at_agents == ()  # said to those that count without having been told to


def test_negative_claims_count_as_none(many):
    job = Played(many)
    assert all(not fact.at_agents for _, fact in job.play(20, operations=FEW, claims={"w-0": -5}))


def test_a_choice_that_is_not_followed_is_said_again_ever_less_often(many):
    job = Played(many, follow=False)
    times = [at_s for at_s, fact in job.play(400, operations=MUCH) if fact.at_agents]
    gaps = np.diff(times)
    assert 5 <= gaps[0] <= 8
    assert (gaps <= 64).all()
    assert gaps[-1] >= 60


def test_the_next_detector_goes_on_with_what_was_chosen(many):
    job = Played(many)
    ((_, fact),) = job.play(30, operations=MUCH)
    later = Played(many)
    later.chooser.remember(fact)
    later.stages = fact.at_agents
    assert later.play(30, operations=MUCH) == []
    ((_, back),) = later.play(30, operations=FEW)
    assert back.at_agents == ()


def test_the_next_detector_calls_agents_back_for_a_plugin(many):
    chooser = Chooser(tuple)
    chooser.remember(
        AnalysisPlaced(
            at_agents=STAGES, machines=64, operations_s=1, detector_cpu=1, detector_cpu_central=2
        )
    )
    said = []
    for second in range(1, 5):
        chooser.take(window(many, "w-0", counted=5))
        said += [(second, fact) for fact in chooser.look(second)]
    assert [(second <= 4, fact.at_agents) for second, fact in said] == [(True, ())]


def test_standbys_do_not_count_as_machines_without_traffic(membership_of):
    membership = membership_of(64)
    core = DetectorCore([])
    core.on_fact(JobFormed(membership=membership), 0.0)
    said = []
    for second in range(1, 20):
        for slot in range(64):
            core.on_batch(replace(batch(*[slot] * 10_000), machine=f"w-{slot}"), second)
        for number in range(100):
            core.on_batch(Batch("j", f"s-{number}", 0, 1, np.zeros(0, RECORD)), second)
        said += core.tick(second)
    assert next(fact.at_agents for fact in said if isinstance(fact, AnalysisPlaced)) == STAGES


def test_a_tenfold_change_of_a_large_job_is_answered_within_ten_seconds():
    assert answered_s(1024 * 8, 12, 120) <= 10
    assert answered_s(1024 * 8, 120, 12) <= 10


# -- the same findings ---------------------------------------------------------------------------

LONG = {"compute_10", "compute_2x", "host_2x", "two_at_once", "compute_20_short_steps"}
"""Played by the benchmark, and too long here; ``compute_20`` and ``loader_stalls`` are alike."""
CASES = [name for name in CLASSES if name not in LONG]


@pytest.fixture(scope="module")
def frozen():
    job, steps = troubled_job("hang_frozen", SMALL["hang_frozen"])
    return recorded(job, steps=steps)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_findings_are_the_same_wherever_stages_run(name):
    job, steps = troubled_job(name, SMALL[name])
    entries = recorded(job, steps=steps)
    expected = findings(entries, central)
    assert expected
    assert findings(entries, at_agents) == expected
    assert findings(entries, alternating) == expected


def observe_all(entries):
    hang = HangDetector()
    player, _ = play(entries, {"hang": hang})
    assert not player.errors
    return player.findings, hang._acted_s.tobytes()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_batches_that_are_lost_late_or_repeated_do_the_same_under_any_split(data, frozen):
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    fate = rng.choice(["", "lost", "twice", "late"], size=len(frozen), p=[0.85, 0.05, 0.05, 0.05])
    split = rng.integers(0, 2, size=(64, 4096))

    def under(places):
        said = []
        for at, entry in enumerate(placed(frozen, places)):
            whole = not isinstance(entry.what, Batch)
            if whole or fate[at] != "lost":
                said.append(entry)
            if not whole and fate[at] == "twice":
                said.append(entry)
            if not whole and fate[at] == "late" and len(said) > 1:
                # Two change places.
                before, late = said[-2:]
                said[-2:] = [replace(late, now_s=before.now_s), before]
        return observe_all(sorted(said, key=lambda one: one.now_s))

    def drawn(machine, number):
        return STAGES if split[zlib.crc32(machine.encode()) % 64, number % 4096] else ()

    assert under(drawn) == under(central)


def test_nobody_speaks_for_the_ranks_of_others(membership_of):
    membership = membership_of(2)
    core_plugin = []

    class Seen(BaseDetector):
        def observe(self, window):
            core_plugin.append(window.activity["rank"].tolist())
            return ()

    core = DetectorCore([Guarded("one", Seen())])
    core.on_fact(JobFormed(membership=membership), 0.0)
    core.on_batch(count_operations(batch(0, 1, 5, -3)), 0.0)
    assert core_plugin[-1] == [0]


def test_a_large_fleet_says_the_same_under_both_splits():
    """The synthetic fleet of the benchmark keeps its sections but for the operations."""
    stages = MachineStages()
    stages.place(STAGES)
    for one in Fleet(64).batches(3):
        less = stages.apply(one)
        assert less.more.activity["operations"].sum() == len(one.records)
        for name in ("steps", "links", "pulses", "heads", "open"):
            assert less.more.named(name).tobytes() == one.more.named(name).tobytes()
