"""What ``pip install`` gives: all of it, without this repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tests.docs.test_commands import COMMANDS

from trainmover import __version__

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]

JOB = ["-m", "trainmover_executor.programs.gpt", "--steps", "11", "--width", "32", "--layers", "1"]


PIP = [sys.executable, "-m", "pip", "-q"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder)]
    subprocess.run([*PIP, *build, str(ROOT)], check=True, timeout=120)
    (made,) = folder.glob("trainmover-*.whl")
    return made


def contents(made: Path) -> dict[str, int]:
    """The name of each file in a wheel, and its checksum."""
    with zipfile.ZipFile(made) as archive:
        return {one.filename: one.CRC for one in archive.infolist()}


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A virtual environment that has the wheel, and sees what the wheel needs."""
    folder = wheel.parent
    venv.create(folder / "venv")
    base = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    site = Path(sysconfig.get_path("purelib", "venv", vars=base))
    # As a line of a .pth, a folder gives its packages but not what is installed in it for editing.
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    there = ["--python", str(folder / "venv"), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*PIP, *there], check=True, timeout=120)
    return folder / "venv" / "bin"


def run(installed: Path, *command: str, home: Path) -> str:
    """Standard output of a command of the wheel, run where there is no repository."""
    env = {**os.environ, "TRAINMOVER_HOME": str(home)}
    env["PATH"] = f"{installed}:{Path(sys.executable).parent}:{env['PATH']}"
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(installed / command[0]), *command[1:]],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_the_wheel_that_runs(installed: Path, tmp_path: Path) -> None:
    where = "import trainmover, trainmover_detector as d, trainmover_planner as p"
    where += ", trainmover_simulator as s"
    where += "; print(trainmover.__file__, d.__file__, p.__file__, s.__file__)"
    for path in run(installed, "python", "-c", where, home=tmp_path).split():
        assert Path(path).is_relative_to(installed.parent)


def test_it_simulates(installed: Path, tmp_path: Path) -> None:
    said = run(installed, "trainmover", "simulate", "--gpus", "8192", "--json", home=tmp_path)
    assert len(json.loads(said)["rows"]) == 6


def test_it_trains_with_a_standby(installed: Path, tmp_path: Path) -> None:
    said = run(installed, "trainmover", "run", "--nnodes", "2:3", *JOB, home=tmp_path)
    assert re.search(r"^step +10  loss", said, re.MULTILINE)


def test_its_detectors_are_found(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(run(installed, "trainmover", "detector", "ls", "-o", "json", home=tmp_path))
    assert {"liveness", "straggler", "hang", "links"} <= {each["name"] for each in listed}


def test_the_page_of_the_dashboard_is_in_it(installed: Path, tmp_path: Path) -> None:
    look = "from importlib.resources import files; "
    look += "at = files('trainmover_console.dashboard') / 'assets'"
    look += "; print(*(each.name for each in at.iterdir() if each.read_bytes()))"
    found = run(installed, "python", "-c", look, home=tmp_path).split()
    assert {"page.html", "page.css", "page.js"} <= set(found)


def test_the_source_archive_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=120)
    (source,) = tmp_path.glob("trainmover-*.tar.gz")
    again = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path)]
    subprocess.run([*PIP, *again, str(source)], check=True, timeout=120)
    assert contents(tmp_path / wheel.name) == contents(wheel)


def test_what_is_installed_has_one_version_everywhere(installed: Path, tmp_path: Path) -> None:
    said = run(installed, "trainmover", "--version", home=tmp_path)
    assert said.split() == ["trainmover", __version__]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text()
    latest = re.search(r"^## \[(?!Unreleased)([^\]]+)\]", changes, re.MULTILINE)
    assert latest is not None
    assert {__version__, latest[1]} == {declared}


def test_it_has_the_extras_that_the_documentation_names() -> None:
    provided = metadata.metadata("trainmover").get_all("Provides-Extra")
    named = [re.search(r"trainmover\[([\w,]+)\]", command) for _, command in COMMANDS]
    extras = {extra for match in named if match for extra in match[1].split(",")}
    assert {"train", "server"} <= extras <= set(provided or ())


@pytest.mark.walk
@pytest.mark.timeout(900)
def test_an_empty_environment_gets_all_of_it_from_the_index(wheel: Path, tmp_path: Path) -> None:
    """``pip install 'trainmover[all]'``, then what the README begins with."""
    folder = tmp_path / "venv"
    venv.create(folder)
    wanted = ["-c", str(ROOT / "constraints.txt"), f"{wheel}[all]"]
    there = ["--python", str(folder), "install", *wanted]
    subprocess.run([*PIP, *there], check=True, timeout=600)
    said = run(
        folder / "bin", "trainmover", "run", "--slots", "2", "--standbys", "1", *JOB, home=tmp_path
    )
    assert re.search(r"^step +10  loss", said, re.MULTILINE)
    assert run(folder / "bin", "trainmover", "job", "ls", home=tmp_path).startswith("job")
    judged = json.loads(run(folder / "bin", "trainmover", "doctor", "-o", "json", home=tmp_path))
    assert judged["worst"] != "problem"
    run(folder / "bin", "python", "-c", "import prometheus_client, starlette", home=tmp_path)
