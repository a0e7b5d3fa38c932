"""A file system that is soon full; skipped where nobody may mount one."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmover.bus.embedded import EmbeddedServer


class SmallDisk:
    """A tmpfs.

    Args:
        path: Where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def server(self) -> EmbeddedServer:
        """A server that keeps its streams here, and believes that there is room for all of them."""
        store = json.dumps(str(self.path / "bus" / "store"))
        config = f"jetstream {{ store_dir: {store}, max_file_store: 8GB }}"
        return EmbeddedServer(store_dir=self.path / "bus", extra_config=config)

    def fill(self) -> None:
        """Leave no byte."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(path: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """Mount one for a while."""
    path.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs"]
    try:
        subprocess.run(["mount", *options, str(path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)
