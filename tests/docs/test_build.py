"""The documentation builds as a site, and a warning fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    first = (tmp_path / "site" / "index.html").read_text()
    assert "Replace a machine of a running PyTorch training job" in first
    assert 'href="reference/cli/"' in first
    assert (tmp_path / "site" / "adr").is_dir()
    reference = (tmp_path / "site" / "reference" / "python" / "index.html").read_text()
    for name in ("CollectiveWindow", "DetectorConfig", "Envelope", "BusBench"):
        assert f'.{name}"' in reference
    drawn = (tmp_path / "site" / "concepts" / "states" / "index.html").read_text()
    assert '<pre class="mermaid">' in drawn
