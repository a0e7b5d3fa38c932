"""The detector: readings of devices in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field

from trainmover.detection import BaseDetector, DetectorConfig, Evidence, Verdict
from trainmover.events.machine import MachineNoticed
from trainmover.topology import Membership


class DeviceMetricsConfig(DetectorConfig):
    """What is too much."""

    hot_celsius: float = Field(default=90.0, description="A device at or above this is hot.")
    hot_readings: int = Field(default=3, ge=1, description="So many hot readings in a row.")
    ecc_errors: float = Field(default=1.0, ge=1, description="Uncorrected memory errors.")


class DeviceMetricsDetector(BaseDetector):
    """Names machines whose devices are hot, throttled, or lose bits."""

    api_version: ClassVar[int] = 1
    Config = DeviceMetricsConfig

    def __init__(self, config: DeviceMetricsConfig) -> None:
        self._config = config
        self._hot: dict[str, int] = {}
        self._named: set[str] = set()

    def membership_changed(self, membership: Membership) -> None:
        """Machines stay what they are; claims about those that left are closed by the service."""
        self._named &= {member.machine for member in membership.members}

    def notice(self, evidence: Evidence) -> Iterable[Verdict]:
        """Judge one reading."""
        fact = evidence.fact
        if not isinstance(fact, MachineNoticed) or fact.kind != "metrics":
            return
        machine = fact.machine
        why = self._trouble(machine, fact)
        if why and machine not in self._named:
            self._named.add(machine)
            yield Verdict(
                kind="device",
                machine=machine,
                rank=None,
                confidence=0.9,
                summary=f"{machine}: {why}",
                evidence={"metrics": dict(fact.metrics)},
                advice="move",
            )
        elif not why and machine in self._named:
            self._named.discard(machine)
            yield Verdict("device", machine, None, 0.9, f"{machine} is fine again", closed=True)

    def _trouble(self, machine: str, fact: MachineNoticed) -> str:
        hottest = fact.metrics.get("temperature.gpu", 0.0)
        hot = self._hot.get(machine, 0) + 1 if hottest >= self._config.hot_celsius else 0
        self._hot[machine] = hot
        errors = fact.metrics.get("ecc.errors.uncorrected.volatile.total", 0.0)
        if errors >= self._config.ecc_errors:
            return f"{errors:.0f} uncorrected memory errors"
        if fact.metrics.get("clocks_event_reasons.hw_slowdown", 0.0):
            return "the hardware slows itself down"
        if hot >= self._config.hot_readings:
            return f"{hottest:.0f} degrees Celsius in {hot} readings"
        return ""
