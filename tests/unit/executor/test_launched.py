"""What a program says that another launcher has started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_commands import stub
from typer.testing import CliRunner

from trainmover_console.cli.app import app
from trainmover_executor.agent.options import parse
from trainmover_executor.worker.launched import advice, command_of

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "1caa",
    "WORLD_SIZE": "8",
    "GROUP_WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "8",
}
PROGRAM = ["train.py", "--lr", "3e-4"]


def line(said: str) -> list[str]:
    return said.rpartition("with: ")[2].split()


def test_torchrun_on_one_host() -> None:
    said = advice(TORCHRUN, PROGRAM)
    assert "started by torchrun and not by TrainMover" in said
    words = line(said)
    assert " ".join(words) == "trainmover run --slots 8 --standbys 1 train.py --lr 3e-4"
    assert CliRunner().invoke(stub(app, root=True), words[1:]).exit_code == 0


@pytest.mark.parametrize("program", [PROGRAM, ["-m", "package.train", "--lr", "3e-4"]])
def test_torchrun_on_several_machines(program: list[str]) -> None:
    said = advice({**TORCHRUN, "GROUP_WORLD_SIZE": "4", "WORLD_SIZE": "32"}, program)
    words = line(said)
    assert words[:2] == ["trainmover", "agent"]
    _, options = parse([word.replace("URL", "nats://bus:4222") for word in words[2:]])
    assert (options.nnodes_min, options.nnodes_max, options.ranks) == (4, 5, 8)
    assert list(options.program) == [word for word in program if word != "-m"]


def test_accelerate_launch_keeps_what_it_set() -> None:
    environment = {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1",
        **TORCHRUN,
    }
    said = advice(environment, PROGRAM)
    assert "started by accelerate launch" in said
    assert line(said)[:3] == ["ACCELERATE_MIXED_PRECISION=bf16", "trainmover", "run"]


def test_without_a_launcher() -> None:
    said = advice({}, PROGRAM)
    assert "was not started by TrainMover" in said
    assert said.endswith(": trainmover run --slots 4 --standbys 1 train.py --lr 3e-4")


def test_the_command_of_a_module_and_of_no_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert command_of([str(script), "-v"], module=None) == [str(script), "-v"]
    assert command_of(["/x/__main__.py", "-v"], module="pkg.__main__") == ["-m", "pkg", "-v"]
    assert command_of(["-c"], module=None) == ["your_program.py"]


def test_torchrun_itself(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from trainmover import Session\nSession.init()\n")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "1", str(script), "--lr", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *launch], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"trainmover run --slots 1 --standbys 1 {script} --lr 1" in done.stderr
