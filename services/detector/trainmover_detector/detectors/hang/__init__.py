"""Hangs of processes, of links, of programs: is the job standing still, and because of whom?"""

from trainmover_detector.detectors.hang.detector import HangConfig, HangDetector

__all__ = ["HangConfig", "HangDetector"]
