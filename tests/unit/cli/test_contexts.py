"""Named contexts, and lists of jobs: of this host and of a bus."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.support.cli import command
from typer.testing import CliRunner

from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import JOBS_BUCKET
from trainmover.errors import ConfigError
from trainmover.protocol.requests import JobStatus
from trainmover.runtime import procfs
from trainmover_console.cli.app import app
from trainmover_console.cli.connect import Target
from trainmover_console.cli.contexts import VARIABLE, Contexts
from trainmover_console.cli.exits import ExitCode
from trainmover_launcher import registry

ELSEWHERE = "nats://elsewhere:4222"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINMOVER_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv(VARIABLE, "")  # the command line sets it: it shall not outlive the test
    return tmp_path


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == ExitCode.OK, done.output
    return done.stdout


def register(job: str, url: str) -> None:
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    registry.write(
        registry.JobRecord(
            job=job, nats=url, pid=stat.pid, start_ticks=stat.start_ticks, log_dir="/nowhere"
        )
    )


def test_the_first_context_is_in_use_and_one_is_used_where_nothing_is_named() -> None:
    run("context", "set", "prod", "--nats", ELSEWHERE, "--job", "gpt")
    run("context", "set", "lab", "--nats", "nats://lab:4222")
    assert Target.find(None, None) == Target(
        "gpt", ELSEWHERE, Contexts.load().get("prod").credentials()
    )
    assert Target.find("other", None).job == "other"
    assert Target.find("j", "nats://named:1") == Target("j", "nats://named:1")


def test_a_job_of_this_host_that_is_named_comes_before_the_context_in_use() -> None:
    run("context", "set", "prod", "--nats", ELSEWHERE, "--job", "gpt")
    register("here", "nats://127.0.0.1:1")
    assert Target.find("here", None).url == "nats://127.0.0.1:1"
    assert Target.find(None, None).url == ELSEWHERE


def test_a_named_context_comes_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    run("context", "set", "prod", "--nats", ELSEWHERE)
    run("context", "use")
    register("here", "nats://127.0.0.1:1")
    monkeypatch.setenv(VARIABLE, "prod")
    assert Target.find("here", None).url == ELSEWHERE
    with pytest.raises(ConfigError, match="add --job NAME"):
        Target.find(None, None)


def test_contexts_are_listed_replaced_and_forgotten(home: Path) -> None:
    run("context", "set", "a", "--nats", "nats://a:1")
    run("context", "set", "b", "--nats", "nats://b:1", "--job", "j")
    run("context", "use", "b")
    run("context", "set", "b", "--nats", "nats://b:2", "--job", "j")
    known = json.loads(run("context", "ls", "-o", "json"))
    assert [(one["name"], one["current"], one["nats"]) for one in known] == [
        ("a", False, "nats://a:1"),
        ("b", True, "nats://b:2"),
    ]
    run("context", "rm", "b")
    assert (Contexts.load().current, list(Contexts.load().known)) == ("", ["a"])
    assert (home / "contexts.json").stat().st_mode & 0o077 == 0


def test_a_password_in_a_url_is_kept_and_not_shown(home: Path) -> None:
    url = "nats://me:s3cret@127.0.0.1:1"
    register("here", url)
    shown = run("job", "ls", "-o", "json")
    shown += command("bus", "setup", "--nats", url, "--dry-run").stderr
    run("context", "set", "a", "--nats", url)
    shown += run("context", "ls", "-o", "json") + run("context", "ls")
    assert "nats://127.0.0.1:1" in shown
    assert "s3cret" not in shown
    assert Contexts.load().known["a"].nats == registry.find("here").nats == url
    assert (home / "jobs" / "here.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("use", "nobody"), "there is no context 'nobody'"),
        (("rm", "nobody"), "there is no context 'nobody'"),
        (("set", "x", "--nats", "nats://a:1", "--job", "a.b"), "a.b"),
        (("set", "x", "--nats", "nats://a:1", "--nkey", "/no/such"), "/no/such"),
    ],
)
def test_what_makes_no_context_is_refused_and_loses_nothing(
    arguments: tuple[str, ...], says: str
) -> None:
    run("context", "set", "kept", "--nats", ELSEWHERE)
    done = CliRunner().invoke(app, ["context", *arguments])
    assert done.exit_code == ExitCode.USAGE
    assert says in " ".join(done.stderr.split())
    assert list(Contexts.load().known) == ["kept"]


def test_a_damaged_file_is_named(home: Path) -> None:
    (home / "contexts.json").write_text("{")
    with pytest.raises(ConfigError, match=r"contexts\.json cannot be read"):
        Target.find(None, None)


def test_the_doctor_looks_at_the_context_too() -> None:
    run("context", "set", "prod", "--nats", "nats://127.0.0.1:1", "--job", "gpt")
    done = CliRunner().invoke(app, ["doctor", "-o", "json"])
    assert json.loads(done.stdout)["bus"] == "nats://127.0.0.1:1"
    assert done.exit_code == ExitCode.FAILED, "nobody answers there"


async def stored(url: str, job: str, step: int) -> None:
    status = JobStatus(
        job=job,
        phase="running",
        reason="",
        epoch=3,
        step=step,
        membership=None,
        machines=(),
        standbys=(),
        migrations=(),
        incidents=(),
    )
    async with NatsBus(url) as bus:
        await bus.setup()
        body = status.model_dump_json().encode()
        await bus.put(JOBS_BUCKET, job, body, revision=None)
        await bus.put(JOBS_BUCKET, f"{job}.incarnation", b"1", revision=None)


async def test_jobs_of_a_bus_and_of_this_host(nats_url: str) -> None:
    await stored(nats_url, "alpha", 17)
    await stored(nats_url, "beta", 4)
    async with NatsBus(nats_url) as bus:
        await bus.put(JOBS_BUCKET, "damaged", b'{"job": 3}', revision=None)
    listed = await asyncio.to_thread(run, "job", "ls", "--nats", nats_url, "-o", "json")
    assert [(one["job"], one["state"], one["step"]) for one in json.loads(listed)] == [
        ("alpha", "running", 17),
        ("beta", "running", 4),
        ("damaged", "unknown", None),
    ]
    register("beta", nats_url)
    register("lost", "nats://127.0.0.1:1")
    here = json.loads(await asyncio.to_thread(run, "job", "ls", "-o", "json"))
    assert [(one["job"], one["state"]) for one in here] == [
        ("beta", "running"),
        ("lost", "unknown"),
    ]


def test_a_dry_setup_writes_nothing(home: Path) -> None:
    out = home / "keys"
    setup = ("bus", "setup", "--out", str(out))
    said = json.loads(run(*setup, "--job", "j", "--machines", "2", "--dry-run", "-o", "json"))
    assert said["dry_run"]
    assert all(folder.startswith(str(out)) for folder in said["clients"].values())
    assert not out.exists()

    run(*setup, "--job", "j", "--machines", "2")
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))
    shown = run(*setup, "--machine", "late", "--revoke", "node-1", "--dry-run")
    assert "would be made" in shown
    assert before == sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))
