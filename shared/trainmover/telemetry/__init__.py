"""Telemetry: records of ranks, and how late they were."""
