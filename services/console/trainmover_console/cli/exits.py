"""Exit codes, stable across versions: scripts may rely on them."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """What a ``trainmover`` command ended with."""

    OK = 0
    """It did what was asked."""
    FAILED = 1
    """The job, the migration or the demo's verdict failed."""
    USAGE = 2
    """The command line, a name or a file is wrong."""
    REFUSED = 3
    """The planner refused, or the bus: this user may not do that. Nothing changed."""
    UNREACHABLE = 4
    """The bus or the planner does not answer; the outcome is unknown."""
    EXHAUSTED = 75
    """No machine was left for the job: start it again later (``EX_TEMPFAIL``)."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM."""
