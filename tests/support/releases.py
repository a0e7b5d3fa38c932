"""The sources of an earlier release, taken from git, to be run beside those of this tree."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
REF = "SKEW_WITH"
"""Variable that names a commit, in place of the latest tag or, without tags, the one before."""


class NoReleaseError(Exception):
    """There is nothing to compare with, and why."""


def earlier() -> str:
    """The commit to take.

    Raises:
        NoReleaseError: This is no checkout, or one without history.
    """
    if named := os.environ.get(REF):
        return _git("rev-parse", "--verify", f"{named}^{{commit}}").decode().strip()
    try:
        return _git("describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^").decode().strip()
    except NoReleaseError:
        return _git("rev-parse", "--verify", "HEAD^").decode().strip()


def unpack(ref: str, folder: Path) -> dict[str, str]:
    """Write the sources of ``ref`` into ``folder``; the environment in which they are imported.

    Raises:
        NoReleaseError: git cannot give them.
    """
    sources = _git("archive", ref, "pyproject.toml", "shared", "services")
    with tarfile.open(fileobj=io.BytesIO(sources)) as archive:
        archive.extractall(folder, filter="data")
    _install(folder)
    paths = [folder / "shared", *sorted((folder / "services").iterdir())]
    return {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def _install(folder: Path) -> None:
    """Give the sources the metadata of an installed package: detectors are found by it."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / "shared" / f"trainmover-{project['version']}.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: trainmover\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(about)
    points = (
        f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in named.items())
        for group, named in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(points))


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        raise NoReleaseError("there is no git here") from None
    if done.returncode:
        words = done.stderr.decode().strip().splitlines()
        raise NoReleaseError(f"git {arguments[0]}: {words[-1] if words else 'failed'}")
    return done.stdout
