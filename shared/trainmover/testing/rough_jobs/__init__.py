"""A second kind of simulated jobs with labelled troubles: rough hosts, networks and telemetry.

What goes wrong, and who talks to whom, is as in ``simulated_jobs``. What is only noise is not: it
has heavy tails, wanders, comes back with checkpoints and evaluations, and batches are lost several
in a row. It was written when the detectors were done, so that they are judged by noise that they
were not made for. Read ``work`` (what a step asks of the ranks), ``job`` (how batches arrive).
"""

from trainmover.testing.rough_jobs.cases import healthy_rough_job, troubled_rough_job
from trainmover.testing.rough_jobs.job import RoughJob
from trainmover.testing.rough_jobs.work import Rough

__all__ = ["Rough", "RoughJob", "healthy_rough_job", "troubled_rough_job"]
