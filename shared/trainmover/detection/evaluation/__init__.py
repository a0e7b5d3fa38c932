"""Detectors judged: recordings, replay, scores."""
