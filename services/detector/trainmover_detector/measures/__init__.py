"""What detectors compute from telemetry."""
