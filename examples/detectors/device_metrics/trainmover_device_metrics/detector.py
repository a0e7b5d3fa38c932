"""The detector: readings of devices in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from trainmover.detection import BaseDetector, DetectorConfig, Evidence, Finding
from trainmover.events.machine import MachineNoticed
from trainmover.job.topology import Membership


class DeviceMetricsConfig(DetectorConfig):
    """What is too much."""

    hot_celsius: float = Field(default=90.0, description="A device at or above this is hot.")
    hot_s: float = Field(default=10.0, ge=0, description="A device may be hot for so many seconds.")
    ecc_errors: float = Field(default=1.0, ge=1, description="Uncorrected memory errors.")


@dataclass(frozen=True)
class Device:
    """The latest reading of one device, and since when it has been hot; it holds until the next."""

    metrics: Mapping[str, float]
    hot_since_s: float | None


class DeviceMetricsDetector(BaseDetector):
    """Names machines with a device that is hot, throttled, or loses bits."""

    api_version: ClassVar[int] = 1
    Config = DeviceMetricsConfig

    def __init__(self, config: DeviceMetricsConfig) -> None:
        self._config = config
        self._devices: dict[str, dict[int, Device]] = {}
        self._named: set[str] = set()

    def membership_changed(self, membership: Membership) -> None:
        """Machines stay what they are; findings about those that left are closed by the service."""
        self._named &= {member.machine for member in membership.members}

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """Take in one reading of one device."""
        fact = evidence.fact
        if not isinstance(fact, MachineNoticed) or fact.kind != "metrics":
            return
        devices = self._devices.setdefault(fact.machine, {})
        index = int(fact.metrics.get("index", 0.0))
        hot = fact.metrics.get("temperature.gpu", 0.0) >= self._config.hot_celsius
        before = devices[index].hot_since_s if index in devices else None
        since_s = evidence.received_s if before is None else before
        devices[index] = Device(dict(fact.metrics), since_s if hot else None)
        yield from self._judge(fact.machine, evidence.received_s)

    def tick(self, now_s: float) -> Iterable[Finding]:
        """What was hot just now may be so for too long."""
        for machine, devices in self._devices.items():
            if any(device.hot_since_s is not None for device in devices.values()):
                yield from self._judge(machine, now_s)

    def _judge(self, machine: str, now_s: float) -> Iterable[Finding]:
        found = {
            index: why
            for index, device in sorted(self._devices[machine].items())
            if (why := self._trouble(device, now_s))
        }
        if found and machine not in self._named:
            self._named.add(machine)
            index, why = next(iter(found.items()))
            metrics = dict(self._devices[machine][index].metrics)
            yield Finding(
                kind="device",
                machine=machine,
                rank=None,
                confidence=0.9,
                summary=f"{machine}: device {index}: {why}",
                evidence={"device": index, "metrics": metrics},
                advice="move",
            )
        elif not found and machine in self._named:
            self._named.discard(machine)
            yield Finding("device", machine, None, 0.9, f"{machine} is fine again", closed=True)

    def _trouble(self, device: Device, now_s: float) -> str:
        errors = device.metrics.get("ecc.errors.uncorrected.volatile.total", 0.0)
        if errors >= self._config.ecc_errors:
            return f"{errors:.0f} uncorrected memory errors"
        if device.metrics.get("clocks_event_reasons.hw_slowdown", 0.0):
            return "the hardware slows itself down"
        if device.hot_since_s is not None and now_s - device.hot_since_s >= self._config.hot_s:
            celsius = device.metrics["temperature.gpu"]
            return f"{celsius:.0f} degrees Celsius, hot for {now_s - device.hot_since_s:.0f} s"
        return ""
