"""What benchmarks share: running a program under TrainMover, and figures with their spread."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def spread(values: Sequence[float], *, digits: int = 4) -> dict[str, float]:
    """Minimum, median and maximum."""
    figures = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: round(value, digits) for name, value in figures.items()}


def run_program(
    name: str,
    *arguments: str,
    ranks: int,
    redundancy: str = "auto",
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run ``benchmarks.programs.<name>`` on ``ranks`` machines; what it wrote to ``--out``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", "trainmover_console.cli", "run", "--nnodes", str(ranks)]
        command += ["--redundancy", redundancy]
        command += ["-m", f"benchmarks.programs.{name}", "--out", str(out), *arguments]
        subprocess.run(
            command, check=True, stdout=sys.stderr, env={**os.environ, **(environment or {})}
        )
        return json.loads(out.read_text())
