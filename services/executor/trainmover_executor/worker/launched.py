"""What to say in a program that another launcher has started: the line that works instead."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["advice", "command_of"]

_SETTINGS: Final = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1",
}
"""What ``accelerate launch`` tells programs by the environment, and the value that changes nothing.
"""


def advice(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Why the program cannot be moved, and the line that starts it so that it can.

    Args:
        environment: Variables of the process.
        command: The program and its arguments, as behind ``trainmover run``.
    """
    launcher = _launcher(environment)
    by = (
        f"was started by {launcher} and not by TrainMover"
        if launcher
        else ("was not started by TrainMover")
    )
    return f"this program {by}, so nobody could replace its machine. {_line(environment, command)}"


def command_of(argv: Sequence[str], *, module: str | None) -> list[str]:
    """The program and its arguments, as behind ``trainmover run``.

    Args:
        argv: ``sys.argv``.
        module: The name of the module that the interpreter runs; None for a script.
    """
    program, *arguments = argv or [""]
    if module is not None:
        return ["-m", module.removesuffix(".__main__"), *arguments]
    if not Path(program).is_file():  # an interactive session, or python -c
        return ["your_program.py"]
    return [program, *arguments]


def _launcher(environment: Mapping[str, str]) -> str:
    if any(name in environment for name in _SETTINGS):
        return "accelerate launch"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in environment else ""


def _line(environment: Mapping[str, str], command: Sequence[str]) -> str:
    settings = [
        f"{name}={environment[name]}"
        for name, usual in _SETTINGS.items()
        if environment.get(name, usual) != usual
    ]
    machines = environment.get("GROUP_WORLD_SIZE", "1")
    ranks = environment.get("LOCAL_WORLD_SIZE", "1")
    if machines != "1":
        # The agent reads -m itself, and what is behind -- is the program's.
        as_module, program = (command[:1], command[1:]) if command[0] == "-m" else ([], command)
        agent = ["agent", "--job", "NAME", "--nats", "URL", "--slots", machines]
        more = ["--standbys", "1", "--nproc-per-node", ranks, *as_module, "--"]
        where = "Start it on each machine, one more among them, with:"
        words = [*settings, "trainmover", *agent, *more, *program]
        return f"{where} {shlex.join(words)}"
    slots = environment.get("WORLD_SIZE", "4") if _launcher(environment) else "4"
    words = [*settings, "trainmover", "run", "--slots", slots, "--standbys", "1", *command]
    return f"Start it with: {shlex.join(words)}"
