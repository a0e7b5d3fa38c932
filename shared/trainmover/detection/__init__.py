"""The detector SDK: telemetry and facts in, verdicts out.

A detector is synchronous and does no I/O, owns no clock and no thread: time comes in, verdicts go
out. That is what lets it be replayed, simulated and run beside others. A verdict moves nobody;
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
    Verdict,
)

__all__ = [
    "API_VERSION",
    "Advice",
    "BaseDetector",
    "CollectiveWindow",
    "Detector",
    "DetectorConfig",
    "Evidence",
    "Verdict",
]
