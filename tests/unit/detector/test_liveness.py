from __future__ import annotations

import numpy as np
import pytest

from trainmover.detection import CollectiveWindow, Evidence
from trainmover.events.executor import StepBroken, StepProgress, WorkerFinished
from trainmover.events.machine import LinkLost, MachineRegistered, WorkerExited
from trainmover.job.topology import Machine
from trainmover.telemetry.records import RECORD, STEP, Sections
from trainmover_detector.detectors.liveness import LivenessDetector


class Watch:
    """Feeds a liveness detector; ``hear`` is an empty telemetry batch."""

    def __init__(self, membership) -> None:
        self.detector = LivenessDetector()
        self.membership = membership
        self.detector.membership_changed(membership)
        self.now_s = 1000.0
        self.step = 0
        self.advancing = False

    def hear(self, *machines):
        steps = np.zeros(1 if self.advancing else 0, STEP)
        if self.advancing:
            self.step += 1
            steps["step"] = self.step
        for machine in machines:
            window = CollectiveWindow(
                machine,
                self.membership.epoch,
                self.membership,
                np.zeros(0, RECORD),
                self.now_s,
                Sections(steps=steps),
            )
            assert list(self.detector.observe(window)) == []

    def notice(self, fact):
        return list(self.detector.notice(Evidence(fact, self.membership, self.now_s)))

    def run(self, seconds, *talking):
        said = []
        for number in range(round(seconds / 0.1)):
            self.now_s += 0.1
            if number % 5 == 0:
                self.hear(*talking)
            said += self.detector.tick(self.now_s)
        return said

    def lost(self, reporter, peer, *, epoch=None, kind="reset"):
        membership = self.membership
        return self.notice(
            LinkLost(
                machine=reporter,
                rank=membership.slot_of_machine(reporter) or 0,
                peer_rank=membership.slot_of_machine(peer) or 0,
                peer_machine=peer,
                epoch=membership.epoch if epoch is None else epoch,
                step=3,
                kind=kind,
            )
        )

    def exited(self, machine, generation=0):
        return self.notice(
            WorkerExited(
                machine=machine,
                generation=generation,
                rank=self.membership.slot_of_machine(machine) or 0,
                epoch=1,
                exit_code=None,
                signal=9,
                last_words="boom",
            )
        )


ALL = ("w-0", "w-1", "w-2", "w-3")


@pytest.fixture
def watch(membership_of):
    one = Watch(membership_of())
    assert one.run(2.0, *ALL) == []
    return one


def test_an_exit_report_is_enough(watch):
    (finding,) = watch.exited("w-1")
    assert (finding.kind, finding.machine, finding.confidence) == ("machine_failed", "w-1", 1.0)
    assert "signal 9" in finding.summary
    assert finding.evidence["last_words"] == "boom"
    assert watch.exited("w-1") == []


def test_exits_of_standbys_and_earlier_incarnations_are_nothing(watch):
    assert watch.exited("w-7") == []
    assert watch.exited("w-1", generation=3) == []


def test_two_reporters_are_enough(watch):
    assert watch.lost("w-0", "w-1") == []
    assert watch.lost("w-0", "w-1") == [], "the same witness twice is one witness"
    (finding,) = watch.lost("w-2", "w-1")
    assert finding.machine == "w-1"
    assert finding.evidence["reporters"] == ["w-0", "w-2"]


def test_one_reporter_is_enough_when_the_peer_is_silent_too(watch):
    assert watch.run(0.1, *ALL) == []
    assert watch.lost("w-0", "w-1") == []
    assert watch.run(0.4, "w-0", "w-2", "w-3") == []
    (finding,) = watch.run(1.0, "w-0", "w-2", "w-3")
    assert finding.machine == "w-1"
    assert finding.evidence["silent_s"] >= 0.6


def test_one_reporter_and_a_talking_peer_is_not(watch):
    assert watch.lost("w-0", "w-1") == []
    assert watch.run(10.0, *ALL) == []


def test_with_two_machines_one_reporter_suffices(membership_of):
    watch = Watch(membership_of(2))
    watch.run(2.0, "w-0", "w-1")
    (finding,) = watch.lost("w-0", "w-1")
    assert finding.machine == "w-1"


def test_mutual_accusations_of_talking_machines_convict_nobody(watch):
    assert watch.lost("w-0", "w-1") == []
    assert watch.lost("w-1", "w-0") == []
    assert watch.lost("w-1", "w-2") == []
    assert watch.lost("w-2", "w-1") == []
    assert watch.run(10.0, *ALL) == []


def test_who_reports_a_broken_step_is_alive(watch):
    watch.notice(StepBroken(machine="w-1", rank=1, epoch=1, committed_step=3, reason="link to w-2"))
    assert watch.lost("w-0", "w-1") == []
    assert watch.lost("w-2", "w-1") == []


@pytest.mark.parametrize("how", [{"epoch": 2}, {"epoch": 0}, {"kind": "refused"}])
def test_links_of_other_epochs_and_refused_dials_are_no_evidence(watch, how):
    assert watch.lost("w-0", "w-1", **how) == []
    assert watch.lost("w-2", "w-1", **how) == []


def test_silence_while_others_talk(watch):
    assert watch.run(2.5, "w-0", "w-2", "w-3") == []
    (finding,) = watch.run(1.0, "w-0", "w-2", "w-3")
    assert finding.machine == "w-1"
    assert finding.evidence["witness"] == "lease"
    assert watch.run(10.0, "w-0", "w-2", "w-3") == []


def test_everybody_silent_is_the_bus(watch):
    assert watch.run(30.0) == []
    assert watch.run(2.5, "w-0") == [], "the others get a fresh lease when it is back"
    assert watch.run(10.0, *ALL) == []


def test_a_detector_that_was_stopped_itself_accuses_nobody(watch):
    watch.now_s += 60.0
    assert watch.run(2.0, *ALL) == []


def test_a_fresh_detector_waits_long_for_machines_it_never_heard(membership_of):
    watch = Watch(membership_of())
    assert watch.run(20.0, "w-0", "w-2", "w-3") == []
    assert [v.machine for v in watch.run(15.0, "w-0", "w-2", "w-3")] == ["w-1"]


def test_machines_that_finished_are_left_alone(watch):
    watch.notice(WorkerFinished(machine="w-1", rank=1, epoch=1, step=10))
    assert watch.exited("w-1") == []
    assert watch.lost("w-0", "w-1") == []
    assert watch.lost("w-2", "w-1") == []
    assert watch.run(10.0, "w-0", "w-2", "w-3") == []


def test_a_silent_standby_is_named_too(watch):
    watch.run(2.0, *ALL, "w-9")
    (finding,) = watch.run(5.0, *ALL)
    assert finding.machine == "w-9"


def test_a_new_incarnation_is_a_new_chance(watch, membership_of):
    assert watch.exited("w-1")
    watch.membership = membership_of(epoch=2, names=["w-0", "w-4", "w-2", "w-3"])
    watch.detector.membership_changed(watch.membership)
    machine = Machine(name="w-1", generation=1, endpoints=("a:1",))
    watch.notice(MachineRegistered(machine=machine, nnodes_min=4, nnodes_max=5, pid=1, host="h"))
    assert watch.run(5.0, "w-0", "w-4", "w-2", "w-3", "w-1") == []
    assert [v.machine for v in watch.run(5.0, "w-0", "w-4", "w-2", "w-3")] == ["w-1"]


def test_a_refused_link_needs_silence_to_prove_a_death(membership_of):
    watch = Watch(membership_of())
    watch.run(2, "w-0", "w-1", "w-2", "w-3")
    assert watch.lost("w-0", "w-1", kind="refused") == []
    assert watch.lost("w-2", "w-1", kind="refused") == []
    assert watch.run(2, "w-0", "w-1", "w-2", "w-3") == []
    (finding,) = watch.run(1.5, "w-0", "w-2", "w-3")
    assert finding.machine == "w-1"
    assert "were refused" in finding.summary


def test_new_epochs_do_not_put_off_the_finding_on_a_machine_never_heard(membership_of):
    watch = Watch(membership_of())
    said = []
    for epoch in range(2, 8):
        said += watch.run(6, "w-0", "w-2", "w-3")
        watch.membership = membership_of(epoch=epoch)
        watch.detector.membership_changed(watch.membership)
    assert {finding.machine for finding in said} == {"w-1"}


def test_who_votes_is_alive_however_silent(watch):
    """A client of a bus of three servers may need seconds to find another one."""
    watch.advancing = True
    assert watch.run(30, "w-0", "w-1", "w-2") == []
    watch.advancing = False
    (finding,) = watch.run(5, "w-0", "w-1", "w-2")
    assert finding.machine == "w-3"
    assert 3.0 <= finding.evidence["silent_s"] < 3.7


def test_reports_of_progress_prove_it_where_telemetry_gets_lost(watch):
    def progress(step, epoch):
        return watch.notice(StepProgress(machine="w-0", rank=0, epoch=epoch, step=step, step_s=0.3))

    watch.run(1, "w-0", "w-1", "w-2", "w-3")
    for step in range(1, 9):
        assert progress(step, watch.membership.epoch) == []
        assert watch.run(1, "w-0", "w-1", "w-2") == []
    # No news: another epoch's, and a step that was known.
    assert progress(99, watch.membership.epoch - 1) + progress(8, watch.membership.epoch) == []
    assert [one.machine for one in watch.run(3, "w-0", "w-1", "w-2")] == ["w-3"]
