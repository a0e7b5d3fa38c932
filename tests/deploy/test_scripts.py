"""Shell scripts and units of deploy/: what the tools say, and one run of the Slurm script."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
SCRIPTS = [
    ROOT / ".ci" / "run",
    ROOT / "deploy" / "as-container",
    ROOT / "deploy" / "healthy",
    ROOT / "deploy" / "k8s" / "create-secrets",
    ROOT / "deploy" / "slurm" / "train.sbatch",
    ROOT / "deploy" / "try",
]

# What the script needs of Slurm: start the command once a node, and name the nodes.
SRUN = r"""#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
  SLURMD_NODENAME=n$node "$@" >"n$node.log" 2>&1 &
done
wait
"""
SCONTROL = r"""#!/usr/bin/env bash
[[ "$*" == "show hostnames "* ]] && tr , '\n' <<<"$3"
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_are_sound(script: Path) -> None:
    assert os.access(script, os.X_OK)
    checked = subprocess.run(
        [BIN / "shellcheck", script], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_sound(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    # It wants to see the programs where the unit says that they are.
    there = tmp_path / unit.name
    there.write_text(unit.read_text().replace("/opt/trainmover/bin", str(BIN)))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(there)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert unit.name.partition("@")[0] not in checked.stderr, checked.stderr


def run_sbatch(folder: Path, *arguments: str, nodes: int = 3) -> subprocess.CompletedProcess[str]:
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{BIN}:{os.environ['PATH']}",
        "NATS_PORT": str(free_port()),
        "SLOTS": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": ",".join(f"n{node}" for node in range(nodes)),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_SUBMIT_DIR": str(folder),
        "TRAINMOVER_HOME": str(folder / "home"),
    }
    command = [ROOT / "deploy" / "slurm" / "train.sbatch", *arguments]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # the script ends what it started
        out, err = process.communicate(timeout=30)
        raise AssertionError(f"no end in 400 s:\n{out}\n{err}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.job
@pytest.mark.timeout(450)
def test_the_slurm_script_trains_with_a_standby(tmp_path: Path) -> None:
    program = ("-m", "trainmover_executor.programs.gpt", "--steps", "30")
    done = run_sbatch(tmp_path, *program, "--width", "32", "--layers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "job slurm-7: finished" in done.stdout
    ranks = sorted(path.name for path in (tmp_path / "trainmover-7" / "metrics").glob("*.jsonl"))
    assert ranks == ["rank-0.jsonl", "rank-1.jsonl"]


@pytest.mark.job
@pytest.mark.soak
@pytest.mark.timeout(450)
def test_the_slurm_script_fails_with_the_job(tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text("raise SystemExit('no data')\n")
    done = run_sbatch(tmp_path, str(program))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "job slurm-7 is failed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "nodes", "said"),
    [((), 3, "no program was named"), (("train.py",), 1, "1 nodes cannot fill 2 slots")],
)
def test_the_slurm_script_says_what_is_missing(
    tmp_path: Path, arguments: tuple[str, ...], nodes: int, said: str
) -> None:
    done = run_sbatch(tmp_path, *arguments, nodes=nodes)
    assert done.returncode == 2
    assert said in done.stderr
