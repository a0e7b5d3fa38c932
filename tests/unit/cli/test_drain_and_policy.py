"""What people type at ``drain`` and ``policy check``, and what they are told when it is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainmover_console.cli.app import app


def say(*arguments: str):
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--label", "rack"], "write for instance --label rack=r12"),
        (["--label", "=r12"], "write for instance --label rack=r12"),
        (["node-1", "--deadline", "soon"], "write for instance 90s"),
        (["node-1", "--deadline", "nan"], "write for instance 90s"),
        (["node-1", "--deadline", "0s"], "write for instance 90s"),
        (["--pause", "--abort"], "cannot both be"),
        (["no/de"], "no/de"),
    ],
)
def test_a_drain_that_cannot_be_meant(arguments: list[str], told: str) -> None:
    done = say("drain", *arguments, "--job", "x", "--nats", "nats://127.0.0.1:9")
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())


def test_a_file_is_checked_without_a_job(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("cooldown: 2m\nrules:\n- then: wait\n")
    done = say("policy", "check", str(file))
    assert (done.exit_code, "1 rule." in done.output) == (0, True)
    told = json.loads(say("policy", "check", str(file), "-o", "json").stdout)
    assert (told["cooldown"], told["rules"][0]["name"]) == (120.0, "rule 1")
    again = tmp_path / "again.yaml"
    again.write_text(say("policy", "check", str(file), "-o", "yaml").stdout)
    assert say("policy", "check", str(again)).exit_code == 0


def test_what_is_no_policy_is_told(tmp_path: Path) -> None:
    file, pipe = tmp_path / "policy.yaml", tmp_path / "pipe"
    os.mkfifo(pipe)
    file.write_bytes(b"\xff")
    for path, told in (
        (file, "no text in UTF-8"),
        (pipe, "it is no file"),
        (tmp_path, "it is no file"),
        (tmp_path / "none", "cannot be read"),
    ):
        done = say("policy", "check", str(path))
        assert done.exit_code == 2
        assert told in " ".join(done.output.split())
