"""The command line in this process: it takes longer to start than most commands take."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping

from typer.testing import CliRunner, Result

from trainmover_console.cli.app import app

__all__ = ["command"]


def command(
    *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, wherever an event loop may run.

    Args:
        arguments: As on the command line.
        env: Added to the environment while it runs.

    Returns:
        As from ``subprocess.run`` with captured output.
    """
    done: list[Result] = []
    asked = {"NO_COLOR": "1", "COLUMNS": "200", **(env or {})}

    def invoke() -> None:
        done.append(CliRunner(env=asked).invoke(app, arguments, prog_name="trainmover"))

    thread = threading.Thread(target=invoke)  # asyncio.run wants a thread without a loop
    thread.start()
    thread.join()
    (result,) = done
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)
