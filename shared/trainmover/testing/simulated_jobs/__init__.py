"""Simulated training jobs with labelled injections: what detectors are judged by.

Nothing here knows a detector, and no detector knows this: a job computes, waits in collectives and
says so in the telemetry that real ranks send. Read ``shape`` (who talks to whom), ``injections``
(what goes wrong, and what is noise), ``physics`` (when each rank is where), ``job`` (batches).
"""

from trainmover.testing.simulated_jobs.cases import (
    CLASSES,
    healthy_job,
    label_of,
    record_job,
    troubled_job,
)
from trainmover.testing.simulated_jobs.injections import Healthy, Injection, Truth
from trainmover.testing.simulated_jobs.job import Frame, SimulatedJob
from trainmover.testing.simulated_jobs.shape import Shape

__all__ = [
    "CLASSES",
    "Frame",
    "Healthy",
    "Injection",
    "Shape",
    "SimulatedJob",
    "Truth",
    "healthy_job",
    "label_of",
    "record_job",
    "troubled_job",
]
