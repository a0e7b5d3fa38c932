"""The example plugins keep the contract; ``tests/e2e`` installs them into a running stack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "detectors"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_an_example_passes_its_own_tests(name: str) -> None:
    folder = EXAMPLES / name
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = ["-q", "-p", "no:cacheprovider", "--asyncio-mode=auto", "--rootdir", str(folder)]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, *options, str(folder / "tests")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
