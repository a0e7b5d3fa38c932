"""A base test class for authors of detectors: what every detector must get right.

    class TestMine(DetectorContract):
        detector = MyDetector
        finds = "straggler"   # or None, when timing is not what it looks at

Run it with pytest; it needs ``hypothesis``.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmover.detection import CollectiveWindow, Detector, Evidence, Finding
from trainmover.detection.evaluation.replay import Player
from trainmover.detection.guard import Guarded
from trainmover.detection.registry import make
from trainmover.events.machine import MachineNoticed, WorkerExited
from trainmover.telemetry.records import HEAD, LINK, PULSE, RECORD, STEP, Sections
from trainmover.testing.simulated_jobs import Healthy, Injection, Shape, SimulatedJob

__all__ = ["DetectorContract"]

_DTYPES: Final = {
    "records": RECORD, "open": RECORD, "steps": STEP, "links": LINK, "pulses": PULSE, "heads": HEAD
}  # fmt: skip
_SHAPE: Final = Shape(4)
_GROWTH: Final = 1.5


class DetectorContract:
    """Subclass it, set ``detector``, and pytest finds the rest.

    Attributes:
        detector: The class under test.
        options: Its settings.
        finds: Kind of finding that it gives on a rank of twice the usual work; None if it looks at
            something else.
        budget_s: Processor time that one batch may take on average, in seconds.
    """

    detector: ClassVar[type[Any]]
    options: ClassVar[dict[str, Any]] = {}
    finds: ClassVar[str | None] = None
    budget_s: ClassVar[float] = 0.002

    def make(self) -> Detector:
        """A fresh detector."""
        return make(self.detector, self.options)

    def play(self, job: SimulatedJob, *, steps: int, detector: Detector | None = None) -> Player:
        """Let a simulated job's frames come to a detector."""
        player = Player({"mine": detector or self.make()})
        for frame in job.frames(steps=steps):
            job.tell(player, frame)
        return player

    def findings(self, job: SimulatedJob, *, steps: int) -> list[Finding]:
        """What a fresh detector finds; it must not raise."""
        player = self.play(job, steps=steps)
        assert not player.errors, player.errors
        return [one.finding for one in player.findings]

    # -- the contract ----------------------------------------------------------------------------

    def test_it_is_a_detector_of_this_version(self) -> None:
        """It has the methods and the version of the interface."""
        assert isinstance(self.make(), Detector)
        assert Guarded("mine", self.make()).tick(0.0) is not None

    def test_the_same_input_gives_the_same_findings(self) -> None:
        """No clock, no chance, no state outside of the instance."""
        troubles = [Injection("compute", 40, (1,), 2.0)]
        first = self.findings(SimulatedJob(_SHAPE, injections=troubles, seed=3), steps=90)
        again = self.findings(SimulatedJob(_SHAPE, injections=troubles, seed=3), steps=90)
        assert first == again

    def test_healthy_jobs_are_left_alone(self) -> None:
        """Jitter, pauses and checkpoints are no trouble."""
        noise = Healthy(jitter=0.05, pauses_every=17, checkpoint_every=60, evaluate_every=90)
        for seed in range(3):
            job = SimulatedJob(_SHAPE, healthy=noise, seed=seed)
            assert self.findings(job, steps=240) == []

    def test_a_rank_with_twice_the_work_is_found(self) -> None:
        """The right machine, and no other."""
        if self.finds is None:
            return
        job = SimulatedJob(_SHAPE, injections=[Injection("compute", 60, (2,), 2.0)], seed=5)
        found = self.findings(job, steps=100)
        assert {(one.kind, one.machine) for one in found} == {(self.finds, "w-2")}

    def test_lost_repeated_and_reordered_batches_do_no_harm(self) -> None:
        """Telemetry is lossy."""
        noise = Healthy(lost=0.1, repeated=0.2)
        assert self.findings(SimulatedJob(_SHAPE, healthy=noise, seed=7), steps=150) == []

    def test_a_new_epoch_starts_afresh(self) -> None:
        """A joiner warms up; that is no trouble either."""
        noise = Healthy(epochs_at=(40, 41, 90))
        assert self.findings(SimulatedJob(_SHAPE, healthy=noise, seed=9), steps=140) == []

    def test_memory_is_bounded(self) -> None:
        """Twice the steps, about the same state."""
        one, two = self.make(), self.make()
        self.play(SimulatedJob(_SHAPE, seed=1), steps=400, detector=one)
        self.play(SimulatedJob(_SHAPE, seed=1), steps=800, detector=two)
        assert len(pickle.dumps(two)) <= _GROWTH * len(pickle.dumps(one)) + 4096

    def test_it_is_quick(self) -> None:
        """Its time budget holds for a job of 64 machines."""
        frames = list(SimulatedJob(Shape(64, 2), seed=1).frames(steps=20))
        detector, batches = self.make(), 0
        detector.membership_changed(frames[0].windows[0].membership)
        started = time.process_time()
        for frame in frames:
            for window in frame.windows:
                list(detector.observe(window))
                batches += 1
            list(detector.tick(frame.now_s))
        assert (time.process_time() - started) / batches < self.budget_s

    @settings(
        max_examples=25,
        deadline=None,
        # Subclasses inherit this test: each is another executor, with a detector of its own.
        suppress_health_check=[HealthCheck.differing_executors],
    )
    @given(data=st.data())
    def test_it_never_raises(self, data: st.DataObject) -> None:
        """Not on any batch that has the right layout, however wild its numbers."""
        detector = self.make()
        membership = _SHAPE.membership()
        if data.draw(st.booleans()):
            detector.membership_changed(membership)
        for at in range(data.draw(st.integers(1, 4))):
            sections = {name: data.draw(_arrays(dtype)) for name, dtype in _DTYPES.items()}
            window = CollectiveWindow(
                machine=data.draw(st.sampled_from(["w-0", "w-1", "w-9"])),
                epoch=membership.epoch,
                membership=membership,
                records=sections["records"],
                received_s=float(at),
                more=Sections(**sections),
                groups=data.draw(st.sampled_from([{}, {1: (range(4),)}])),
            )
            self._accept(detector.observe(window))
            for fact in (
                MachineNoticed(machine="w-1", kind="health", reason="r"),
                WorkerExited(
                    machine="w-1", generation=0, rank=1, epoch=1, exit_code=1, signal=None
                ),
            ):
                self._accept(detector.notice(Evidence(fact, membership, float(at))))
            self._accept(detector.tick(float(at) + 0.5))

    def _accept(self, findings: Any) -> None:
        for finding in findings:
            assert isinstance(finding, Finding)
            assert 0 <= finding.confidence <= 1
            json.dumps(dict(finding.evidence), allow_nan=False)


def _arrays(dtype: np.dtype[np.void]) -> st.SearchStrategy[np.ndarray[Any, np.dtype[np.void]]]:
    """Records whose ranks may be those of the job and whose other fields may be anything."""

    def build(rows: Sequence[tuple[int, bytes]]) -> np.ndarray[Any, np.dtype[np.void]]:
        array = np.zeros(len(rows), dtype)
        for index, (rank, noise) in enumerate(rows):
            array[index] = np.frombuffer(noise.ljust(dtype.itemsize, b"\1"), dtype, 1)[0]
            array["rank"][index] = rank
        return array

    row = st.tuples(st.integers(-1, 5), st.binary(max_size=dtype.itemsize))
    return st.lists(row, max_size=4).map(build)
