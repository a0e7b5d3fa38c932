"""``deploy/try``: what it runs of the documentation, with stand-ins for what cannot be had here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRY = ROOT / "deploy" / "try"
BIN = Path(sys.executable).parent

KUBECTL = r"""#!/usr/bin/env bash
echo "$*" >>"$STAND_IN_LOG"
case "$*" in
  "get namespace trainmover") exit 1 ;;
  *"trainmover status") echo "gpt: ${STAND_IN_STATE:-running}" ;;
  *"trainmover machine ls") printf '%s  standby  0\n' standby-0 standby-1 ;;
  *"trainmover migration ls") echo "m-0001  committed  planned  2  node-2 -> standby-0  0.030" ;;
esac
"""
NVIDIA_SMI = r"""#!/usr/bin/env bash
query=${1#--query-gpu=}
echo "${query//,/, }"
echo "0, 41, 0, Not Active"
"""
DOCKER = r"""#!/usr/bin/env bash
echo "$COMPOSE_PROJECT_NAME: docker $*" >>"$STAND_IN_LOG"
"""
CURL = r"""#!/usr/bin/env bash
echo "curl ${*: -1}" >>"$STAND_IN_LOG"
case "$*" in
  *api/health) echo '{"database": "ok"}' ;;
  *api/search*) echo '[{"title": "TrainMover: the job"}, {"title": "TrainMover: moves"}]' ;;
  *api/v1/targets) echo '{"health":"up"}' ;;
  *api/v1/rules) echo '{"name":"TrainMoverJobHeld"}' ;;
  *api/v1/query*) echo '{"result":[{"value":[1,"1"]}]}' ;;
esac
"""
STAND_INS = {"kubectl": KUBECTL, "nvidia-smi": NVIDIA_SMI, "docker": DOCKER, "curl": CURL}
STAND_INS["nats"] = r"""#!/usr/bin/env bash
echo "$*" >>"$STAND_IN_LOG"
"""


def tried(
    tmp_path: Path, *arguments: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script with stand-ins first on the path; what it said, what they were called with."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    for name, text in STAND_INS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [TRY, *arguments],
        env={
            **os.environ,
            "PATH": f"{folder}:{BIN}:{os.environ['PATH']}",
            "STAND_IN_LOG": str(log),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done, log.read_text().splitlines() if log.exists() else []


def commands(page: str, *, of: str) -> list[str]:
    """What a page has its reader type, without comments."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    lines = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    return [" ".join(line.partition("  #")[0].split()) for line in lines if line.startswith(of)]


def test_every_command_for_a_cluster_is_run(tmp_path: Path) -> None:
    done, called = tried(tmp_path, "kubernetes", "registry.example", "NODE")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("deploy/try: kubernetes holds\n")
    documented = commands("docs/howto/kubernetes.md", of="kubectl")
    assert len(documented) == 6
    # Its own overlay is the documented one with the registry's images.
    own = {"kubectl apply -k deploy/k8s": "kubectl apply -k "}
    for command in documented:
        wanted = own.get(command, command).removeprefix("kubectl ").replace("'", "")
        assert any(call.startswith(wanted) for call in called), command
    assert called[-2:] == ["uncordon NODE", "delete namespace trainmover"]
    assert not list(ROOT.glob(".try.*"))


def test_what_does_not_hold_is_said_and_everything_is_removed(tmp_path: Path) -> None:
    done, called = tried(
        tmp_path,
        *("kubernetes", "registry.example"),
        STAND_IN_STATE="forming",
        TRY_PATIENCE_S="1",
    )
    assert done.returncode == 1
    assert "does not say 'gpt: running' but: gpt: forming" in done.stderr
    assert called[-1] == "delete namespace trainmover"
    assert not list(ROOT.glob(".try.*"))


def test_grafana_is_brought_up_asked_and_taken_down(tmp_path: Path) -> None:
    """Under a name of its own: the cluster that is there keeps its containers and volumes."""
    done, called = tried(tmp_path, "grafana")
    assert done.returncode == 0, done.stderr
    compose = "trainmover-try: docker compose --profile obs"
    assert (called[0], called[-1]) == (f"{compose} up --build -d", f"{compose} down -v")
    assert len([call for call in called if call.startswith("curl http://127.0.0.1")]) == 5


def test_lines_of_nvidia_smi_are_read(tmp_path: Path) -> None:
    done, _ = tried(tmp_path, "gpu", CUDA_VISIBLE_DEVICES="")
    assert "'temperature.gpu': 41.0" in done.stdout
    assert done.returncode == 2
    assert "error: torch sees no GPU" in done.stderr  # what it measures needs a real one
    assert "holds" not in done.stderr
    (documented,) = commands("examples/detectors/device_metrics/README.md", of="nvidia-smi")
    query = re.search(r"--query-gpu=\S+", documented)
    assert query is not None
    assert query[0] in done.stderr


def test_the_nats_command_is_given_what_the_page_gives_it(tmp_path: Path) -> None:
    done, called = tried(tmp_path, "nats", "--server", "nats://bus:4222")
    assert done.returncode == 0, done.stderr
    assert called == ["--server nats://bus:4222 sub tm.v1.*.> --count=1"]


@pytest.mark.parametrize("what", ["kubernetes", "nats", "gpu"])
def test_a_missing_tool_is_named(what: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "env", "dirname", "mktemp", "rm", "sed"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    done = subprocess.run(
        [TRY, what, "registry.example"],
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert re.search(r"deploy/try: (kubectl|nats|nvidia-smi) is not here: install it", done.stderr)


def test_without_arguments_it_says_what_it_does() -> None:
    done = subprocess.run([TRY], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("deploy/try kubernetes REGISTRY [NODE] | grafana | nats")
