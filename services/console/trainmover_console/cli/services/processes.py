"""``trainmover agent``, ``planner run`` and ``detector run``: this process becomes a service.

The console imports no service. It gives its place to one, with all options of the line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import typer

__all__ = ["SERVICES", "agent", "become", "detector_run", "planner_app"]

SERVICES: Final = {
    ("agent",): "trainmover_executor.agent",
    ("planner", "run"): "trainmover_planner",
    ("detector", "run"): "trainmover_detector",
}
"""Module of the process that each of these commands is."""

planner_app = typer.Typer(help="The service that decides who moves.", no_args_is_help=True)


def become(argv: Sequence[str]) -> None:
    """Replace this process by a service, if the command line says so.

    It is done before any parsing, which would eat the ``--`` that the agent wants to see.
    """
    for words, module in SERVICES.items():
        if tuple(argv[: len(words)]) == words:
            command = [sys.executable, "-m", module, *argv[len(words) :]]
            os.execv(sys.executable, command)  # noqa: S606 - becoming it is the purpose


def agent() -> None:
    """Run the agent of this machine; all options go to it (see trainmover agent --help)."""


@planner_app.command("run")
def planner_run() -> None:
    """Run the planner of a job; all options go to it (see trainmover planner run --help)."""


def detector_run() -> None:
    """Run the detector of a job; all options go to it (see trainmover detector run --help)."""
