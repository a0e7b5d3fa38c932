"""``trainmover agent``, ``planner run`` and their like: this process becomes a service.

The console imports no service. It gives its place to one, with all options of the line.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Final

import typer

__all__ = ["POOLED", "SERVICES", "agent", "become", "detector_run", "planner_app", "pool_serve"]

SERVICES: Final = {
    ("agent",): "trainmover_executor.agent",
    ("planner", "run"): "trainmover_planner",
    ("detector", "run"): "trainmover_detector",
    ("pool", "serve"): "trainmover_pool",
}
"""Module of the process that each of these commands is."""

POOLED: Final = "trainmover_executor.pooled"
"""What ``trainmover agent --pool`` is: it starts the agent of whichever job it is assigned to."""

planner_app = typer.Typer(help="The service that decides who moves.", no_args_is_help=True)


def become(argv: Sequence[str]) -> None:
    """Replace this process by a service, if the command line says so.

    It is done before any parsing, which would eat the ``--`` that the agent wants to see.
    """
    for words, module in SERVICES.items():
        if tuple(argv[: len(words)]) == words:
            rest = argv[len(words) :]
            if words == ("agent",) and _is_pooled(rest):
                module = POOLED  # noqa: PLW2901 - one of two that the word stands for
            command = [sys.executable, "-m", module, *rest]
            os.execv(sys.executable, command)  # noqa: S606 - becoming it is the purpose


def _is_pooled(arguments: Sequence[str]) -> bool:
    """Whether a pool is named before the program, whose options are its own."""
    ours = itertools.takewhile(lambda one: one != "--", arguments)
    return any(one == "--pool" or one.startswith("--pool=") for one in ours)


def agent() -> None:
    """Run the agent of this machine; all options go to it (see trainmover agent --help).

    With --pool NAME it joins a pool and names no job (see trainmover agent --pool NAME --help).
    """


@planner_app.command("run")
def planner_run() -> None:
    """Run the planner of a job; all options go to it (see trainmover planner run --help)."""


def pool_serve() -> None:
    """Lead a pool of machines that jobs share; options: see trainmover pool serve --help."""


def detector_run() -> None:
    """Run the detector of a job; all options go to it (see trainmover detector run --help)."""
