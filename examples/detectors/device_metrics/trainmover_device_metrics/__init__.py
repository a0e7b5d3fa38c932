"""Judges accelerators by what they say about themselves."""

from trainmover_device_metrics.detector import DeviceMetricsConfig, DeviceMetricsDetector

__all__ = ["DeviceMetricsConfig", "DeviceMetricsDetector"]
