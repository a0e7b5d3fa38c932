"""The life of a job."""

from __future__ import annotations

from typing import Final

from trainmover.protocol.chart import Arrow, Chart

__all__ = ["JOB"]

JOB: Final = Chart(
    "a job",
    start="forming",
    arrows=(
        Arrow("forming", "running", "enough machines registered"),
        Arrow("running", "held", "no standby for a slot"),
        Arrow("held", "running", "a machine became ready"),
        Arrow("running", "finished", "every rank ended normally"),
        Arrow("running", "failed", "state lost, or the program is at fault"),
        Arrow("held", "failed", "given up by policy"),
    ),
)
