"""Jobs under ``trainmover run``, and the same programs without any disturbance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.cluster import ClusterJob

WORKLOADS = str(Path(__file__).parents[1] / "jobs" / "workloads.py")

StartJob = Callable[..., ClusterJob]
