"""The ``trainmover`` command: data on stdout, messages on stderr, documented exit codes.

It starts services as processes and imports none of them.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script."""
    from trainmover_console.cli.app import run  # noqa: PLC0415 - keeps `import trainmover_console.cli` light

    raise SystemExit(run())
