"""The pool's command lines: who they become, and what they refuse."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainmover.errors import ConfigError
from trainmover_console.cli.services import processes
from trainmover_executor.pooled.options import parse
from trainmover_pool import __main__ as leader

FILE = "jobs:\n  gpt:\n    agent: --slots 2 -- train.py\n"


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("agent --pool spares --jobs pool.yaml", "trainmover_executor.pooled"),
        ("agent --jobs pool.yaml --pool=spares", "trainmover_executor.pooled"),
        ("agent --job gpt -- train.py --pool max", "trainmover_executor.agent"),
        ("pool serve --pool spares", "trainmover_pool"),
    ],
)
def test_a_command_becomes_its_service(
    line: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(processes.os, "execv", lambda _, command: seen.append(command))
    processes.become(line.split())
    words = 1 if line.startswith("agent") else 2
    assert seen == [[sys.executable, "-m", module, *line.split()[words:]]]


def test_a_machine_says_what_it_is() -> None:
    service, options = parse(
        [
            "--pool",
            "spares",
            "--jobs",
            "pool.yaml",
            "--machine",
            "m-1",
            "--label",
            "rack=r1",
            "--log-dir",
            "logs",
            "--warm-limit",
            "2",
        ]
    )
    assert (service.job, options.pool, options.machine) == ("spares", "spares", "m-1")
    assert (options.labels, options.log_dir) == ({"rack": "r1"}, Path("logs"))
    assert options.warm_limit == 2
    with pytest.raises(ConfigError, match="--warm-limit 0"):
        parse(["--pool", "spares", "--jobs", "pool.yaml", "--warm-limit", "0"])
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse(["--pool", "spares", "--jobs", "pool.yaml", "--label", "rack"])


def test_a_leader_does_not_begin_with_a_wrong_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text("jobs:\n  gpt:\n    agnt: x\n")
    monkeypatch.setattr(sys, "argv", f"x --pool spares --jobs {file}".split())
    with pytest.raises(SystemExit) as ended:
        leader.main()
    assert ended.value.code == 2
    assert f"{file}:3: there is no 'agnt' here. Did you mean 'agent'?" in capsys.readouterr().err
