"""The detector SDK: telemetry and facts in, findings out.

A detector is synchronous and does no I/O, owns no clock and no thread: time comes in, findings go
out. That is what lets it be replayed, simulated and run beside others. A finding moves nobody;
the planner's policy decides. See ``docs/howto/detectors.md``.
"""

from trainmover.detection.model import (
    API_VERSION,
    Advice,
    BaseDetector,
    CollectiveWindow,
    Detector,
    DetectorConfig,
    Evidence,
    Finding,
)

__all__ = [
    "API_VERSION",
    "Advice",
    "BaseDetector",
    "CollectiveWindow",
    "Detector",
    "DetectorConfig",
    "Evidence",
    "Finding",
]
