"""The contract that plugin authors get, kept by every built-in detector."""

from __future__ import annotations

from trainmover.testing.contract import DetectorContract
from trainmover_detector.detectors.degraded import DegradedDetector
from trainmover_detector.detectors.external import ExternalDetector
from trainmover_detector.detectors.hang import HangDetector
from trainmover_detector.detectors.links import LinksDetector
from trainmover_detector.detectors.liveness import LivenessDetector
from trainmover_detector.detectors.numeric import NumericDetector
from trainmover_detector.detectors.straggler import StragglerDetector


class TestStraggler(DetectorContract):
    detector = StragglerDetector
    finds = "straggler"


class TestDegraded(DetectorContract):
    detector = DegradedDetector


class TestHang(DetectorContract):
    detector = HangDetector


class TestLinks(DetectorContract):
    detector = LinksDetector


class TestLiveness(DetectorContract):
    detector = LivenessDetector


class TestNumeric(DetectorContract):
    detector = NumericDetector


class TestExternal(DetectorContract):
    detector = ExternalDetector
