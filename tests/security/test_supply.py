"""What the images are made of: named, pinned by hash, and listed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCKS = {
    "services": ("console",),
    "executor": ("console", "train"),
    "tools": (),
}
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package in a lock."""
    text = (ROOT / "deploy" / f"{name}.lock").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    found = {}
    for line in lines:
        requirement, _, rest = line.partition("--hash")
        parsed = Requirement(requirement)
        (pin,) = parsed.specifier
        assert pin.operator == "==", line
        found[_normal(parsed.name)] = (pin.version, len(SHA256.findall(f"--hash{rest}")))
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {_normal(name): version for name, version in pairs}


@pytest.mark.parametrize("name", LOCKS)
def test_everything_in_a_lock_has_a_hash(name: str) -> None:
    found = locked(name)
    assert found
    assert all(hashes for _, hashes in found.values())


@pytest.mark.parametrize("name", ["services", "executor"])
def test_a_lock_has_all_that_the_project_needs_in_the_versions_that_are_tested(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in LOCKS[name]:
        wanted += project["optional-dependencies"][extra]
    found, tested = locked(name), pinned()
    for requirement in map(Requirement, wanted):
        version, _ = found[_normal(requirement.name)]
        assert requirement.specifier.contains(version), "run `make lock`"
    for package in found.keys() & tested.keys():
        assert found[package][0] == tested[package], "run `make lock`"


def test_images_are_made_of_nothing_else() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [
        shlex.split(part)
        for line in text.splitlines()
        if line.startswith("RUN ")
        for part in line.removeprefix("RUN ").split("&&")
    ]
    installs = [words for words in commands if words[:2] == ["pip", "install"]]
    assert len(installs) == 4
    for words in installs:
        ours = "--no-deps" in words
        assert ours or "--require-hashes" in words or words[-1] == "executor.lock", words
    assert "ARG EXECUTOR_LOCK=deploy/executor.lock\n" in text
    assert "python -m build --no-isolation" in text


def test_torch_of_another_index_is_of_the_same_version() -> None:
    lines = (ROOT / "deploy" / "executor.in").read_text(encoding="utf-8").splitlines()
    (torch,) = [line for line in lines if not line.startswith("#")]
    assert torch == f"torch=={locked('executor')['torch'][0]}"


def test_no_password_is_on_a_command_line() -> None:
    """That of the servers' routes was, for everybody on the host to read."""
    for file in (ROOT / "docker-compose.yml", *(ROOT / "deploy").rglob("compose*.yml")):
        for name, service in yaml.safe_load(file.read_text(encoding="utf-8"))["services"].items():
            said = json.dumps([service.get("command"), service.get("entrypoint")]).lower()
            assert "password" not in said, (file.name, name)
            assert not re.search(r"//[^/\s]+:[^/\s]+@", said), (file.name, name)


@pytest.mark.walk
@pytest.mark.timeout(900)
def test_make_dist_lists_what_is_in_the_images(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    skipped = shutil.ignore_patterns(
        ".git", ".venv", "out", ".*cache", "__pycache__", ".hypothesis"
    )
    shutil.copytree(ROOT, copy, ignore=skipped)
    done = subprocess.run(["make", "dist"], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(["make", "lock"], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in LOCKS:
        lock = Path("deploy") / f"{name}.lock"
        assert (copy / lock).read_text() == (ROOT / lock).read_text(), "run `make lock`"
    assert len(list((copy / "out" / "dist").glob("trainmover-*.whl"))) == 1
    for name in ("services", "executor"):
        bill = json.loads((copy / "out" / "dist" / f"trainmover-{name}.cdx.json").read_text())
        assert bill["bomFormat"] == "CycloneDX"
        assert bill["metadata"]["component"]["name"] == "trainmover"
        listed = {_normal(each["name"]): each for each in bill["components"]}
        assert {key: each["version"] for key, each in listed.items()} == {
            key: version for key, (version, _) in locked(name).items()
        }
        for each in listed.values():
            references = each["externalReferences"]
            assert any(entry.get("hashes") for entry in references), each["name"]
