"""The command line against a real bus and a scripted planner: data, messages, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.cli import command
from tests.unit import factories as make

from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import MigrateRequest, Refusal, RequestAccepted
from trainmover.events.migration import JobFailed, JobFinished, JobFormed
from trainmover.job.plan import Move
from trainmover.job.topology import Frozen
from trainmover.runtime import procfs
from trainmover.tracing.observe import new_event
from trainmover_console.cli.exits import ExitCode
from trainmover_launcher import registry

FORMED = (
    *(make.registered(f"node-{number}") for number in range(3)),
    JobFormed(membership=make.membership_of("node-0", "node-1"), standbys=("node-2",)),
    make.ready("node-2", 0),
    make.progress("node-0", 0, 12),
)


class Job:
    """A bus with facts on it, and a planner that answers as told."""

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self.home = home

    async def tell(self, *facts: Frozen) -> None:
        async with NatsBus(self.url) as bus:
            await bus.setup()
            for fact in facts:
                await bus.publish(new_event(job="j", source=make.source_of(fact), payload=fact))

    def run(
        self, *argv: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        home = {"TRAINMOVER_HOME": str(self.home), "COLUMNS": "160"}
        return command(*argv, env={**home, **(env or {})})

    def register(self, name: str = "j") -> registry.JobRecord:
        stat = procfs.read_stat(os.getpid())
        assert stat is not None
        record = registry.JobRecord(
            job=name, nats=self.url, pid=stat.pid, start_ticks=stat.start_ticks, log_dir="/nowhere"
        )
        registry.write(record)
        return record


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nats_url: str) -> Job:
    monkeypatch.setenv("TRAINMOVER_HOME", str(tmp_path))
    return Job(nats_url, tmp_path)


Handler = Callable[[NatsBus, str, bytes], Awaitable[Frozen]]


class Planner:
    """Serves requests from a thread of its own, while commands run as processes."""

    def __init__(self, url: str, handler: Handler) -> None:
        self._url = url
        self._handler = handler
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.seen: list[tuple[str, bytes]] = []

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with NatsBus(self._url) as bus:

            async def answer(verb: str, body: bytes) -> bytes:
                self.seen.append((verb, body))
                return (await self._handler(bus, verb, body)).model_dump_json().encode()

            await bus.serve("j", answer)
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Planner:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


async def accept(bus: NatsBus, verb: str, body: bytes) -> Frozen:
    """A planner that moves at once."""
    assert verb == "migrate"
    request = MigrateRequest.model_validate_json(body)
    if request.dry_run:
        return RequestAccepted(migration=None)
    resumed = make.MOVE.resumed("node-0", 0, 0.02)
    for fact in (make.MOVE.proposed(), make.MOVE.preparing(), make.MOVE.committed(), resumed):
        await bus.publish(new_event(job="j", source=make.source_of(fact), payload=fact))
    return RequestAccepted(migration="m-0001")


async def give_up(bus: NatsBus, verb: str, body: bytes) -> Frozen:
    for fact in (make.MOVE.proposed(), make.MOVE.preparing(), make.MOVE.aborted("the joiner died")):
        await bus.publish(new_event(job="j", source=make.source_of(fact), payload=fact))
    return RequestAccepted(migration="m-0001")


async def refuse(bus: NatsBus, verb: str, body: bytes) -> Frozen:
    return Refusal(code="no_standby", reason="No standby is warm.", next_step="Add a machine.")


async def test_status_machines_and_migrations_as_data(job: Job) -> None:
    await job.tell(*FORMED, make.MOVE.proposed(), make.MOVE.preparing(), make.MOVE.committed())
    job.register()
    with Planner(job.url, refuse):
        status = json.loads(job.run("status", "-o", "json").stdout)
    assert (status["state"], status["epoch"], status["step"]) == ("running", 2, 40)
    assert status["planner"]["code"] == "no_standby"
    machines = json.loads(job.run("machine", "ls", "-o", "json").stdout)
    assert [(one["machine"], one["role"]) for one in machines] == [
        ("node-0", "active"),
        ("node-1", "released"),
        ("node-2", "active"),
    ]
    (move,) = json.loads(job.run("migration", "ls", "-o", "json").stdout)
    assert move["id"] == "m-0001"
    shown = job.run("migration", "show", "m-", "-o", "yaml")
    assert 'state: "committed"' in shown.stdout.splitlines()


async def test_tables_are_for_people_and_without_colour(job: Job) -> None:
    await job.tell(*FORMED, make.MOVE.proposed(), make.MOVE.committed())
    job.register()
    done = job.run("status")
    assert done.returncode == ExitCode.OK
    assert "\x1b" not in done.stdout + done.stderr
    assert "job j: running, epoch 2" in done.stdout
    assert "node-1 -> node-2" in done.stdout
    assert "planner does not answer" in done.stderr


async def test_migrate_follows_to_the_commit(job: Job) -> None:
    await job.tell(*FORMED)
    job.register()
    with Planner(job.url, accept) as planner:
        done = job.run("migrate", "node-1", "--yes", "--reason", "disk", "-o", "json")
    assert done.returncode == ExitCode.OK, done.stderr
    assert json.loads(done.stdout)["pause_s"] == 0.02
    assert "proposed" in done.stderr
    assert "committed" in done.stderr
    ((_, body),) = planner.seen
    assert json.loads(body)["reason"] == "disk"


async def test_several_machines_move_in_one_request(job: Job) -> None:
    moves = (
        Move(slot=0, leaver="node-0", joiner="node-2"),
        Move(slot=1, leaver="node-1", joiner="node-3"),
    )
    facts = make.Move(
        "m-0001",
        slot=0,
        leaver="node-0",
        joiner="node-2",
        after=make.membership_of("node-2", "node-3", epoch=2),
        moves=moves,
    )

    async def planner(bus: NatsBus, verb: str, body: bytes) -> Frozen:
        for fact in (facts.proposed(), facts.preparing(), facts.committed()):
            await bus.publish(new_event(job="j", source=make.source_of(fact), payload=fact))
        return RequestAccepted(migration="m-0001")

    await job.tell(*FORMED)
    job.register()
    with Planner(job.url, planner) as asked:
        argv = ("migrate", "node-0", "node-1", "--to", "node-2", "--yes", "-o", "json")
        done = job.run(*argv)
    assert done.returncode == ExitCode.OK, done.stderr
    request = MigrateRequest.model_validate_json(asked.seen[0][1])
    assert (request.machines, request.to) == (("node-0", "node-1"), ("node-2",))
    data = json.loads(done.stdout)
    assert data["moves"] == [move.model_dump() for move in moves]
    assert (data["slot"], data["leaver"], data["joiner"]) == (0, "node-0", "node-2")
    assert "node-0 -> node-2 in slot 0, node-1 -> node-3 in slot 1" in done.stderr


async def test_an_aborted_migration_is_a_failure(job: Job) -> None:
    await job.tell(*FORMED)
    job.register()
    with Planner(job.url, give_up):
        done = job.run("migrate", "node-1", "--yes")
    assert done.returncode == ExitCode.FAILED
    assert "the joiner died" in done.stdout


async def test_a_refusal_says_the_next_step(job: Job) -> None:
    await job.tell(*FORMED)
    job.register()
    with Planner(job.url, refuse):
        done = job.run("migrate", "node-1", "--yes")
    assert done.returncode == ExitCode.REFUSED
    assert done.stdout == ""
    assert "refused (no_standby): No standby is warm." in done.stderr
    assert "next: Add a machine." in done.stderr


async def test_nobody_to_confirm_is_a_usage_error(job: Job) -> None:
    await job.tell(*FORMED)
    job.register()
    with Planner(job.url, accept) as planner:
        done = job.run("migrate", "node-1")
    assert done.returncode == ExitCode.USAGE
    assert planner.seen == []


async def test_no_planner_is_unreachable(job: Job) -> None:
    await job.tell(*FORMED)
    job.register()
    done = job.run("migrate", "node-1", "--yes")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "is its planner running?" in done.stderr


async def test_a_job_that_is_over_needs_no_planner_to_say_so(job: Job) -> None:
    await job.tell(*FORMED, JobFinished(epoch=1, step=40))
    done = job.run("migrate", "node-1", "--yes", "--job", "j", "--nats", job.url)
    assert done.returncode == ExitCode.REFUSED
    assert "refused (job_over): The job has finished." in done.stderr


def test_no_bus_is_unreachable(job: Job) -> None:
    done = job.run("status", "--job", "j", "--nats", "nats://127.0.0.1:1")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "no bus at" in done.stderr


def test_jobs_are_found_by_their_runtime_files(job: Job) -> None:
    assert "no job runs on this host" in job.run("status").stderr
    record = job.register("one")
    job.register("two")
    several = job.run("status")
    assert several.returncode == ExitCode.USAGE
    assert "one, two" in several.stderr
    dead = record.model_copy(update={"job": "dead", "start_ticks": 1})
    (job.home / "jobs" / "dead.json").write_text(dead.model_dump_json())
    assert [found.job for found in registry.jobs()] == ["one", "two"]
    assert not (job.home / "jobs" / "dead.json").exists()


def test_events_tail_streams_json_lines(job: Job) -> None:
    asyncio.run(job.tell(*FORMED))
    job.register()
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "trainmover_console.cli",
            "event",
            "tail",
            "--from-start",
            "-o",
            "json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TRAINMOVER_HOME": str(job.home)},
    ) as tail:
        assert tail.stdout is not None
        lines = [json.loads(tail.stdout.readline()) for _ in FORMED]
        tail.send_signal(2)
        tail.communicate(timeout=20)
    assert lines[3]["type"] == "dev.trainmover.job.formed.v1"
    assert tail.returncode == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    "argv",
    [
        ("run",),
        ("run", "--nnodes", "6:4", "-m", "x"),
        ("run", "no-such-file.py"),
        ("migrate", "bad.name", "--yes"),
        ("demo", "--slots", "2"),
        ("status", "--nats", "nats://127.0.0.1:1"),
        ("no-such-command",),
    ],
)
def test_usage_errors(job: Job, argv: tuple[str, ...]) -> None:
    done = job.run(*argv)
    assert done.returncode == ExitCode.USAGE
    assert done.stdout == ""
    assert done.stderr


def test_importing_the_command_line_loads_no_service_and_no_torch() -> None:
    code = (
        "import sys, trainmover_console.cli.app, trainmover_console.cli.daily.demo_show;"
        "print([name for name in sys.modules if name.split('.')[0] in "
        "('torch', 'trainmover_detector', 'trainmover_planner', 'trainmover_executor')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--security", "keys"), "name the bus too, with --nats URL"),
        (("--secure", "--nats", "nats://127.0.0.1:1"), "with --security"),
    ],
)
def test_keys_belong_to_a_bus(job: Job, arguments: tuple[str, ...], hint: str) -> None:
    done = job.run("run", *arguments, __file__)
    assert done.returncode == ExitCode.USAGE
    assert hint in done.stderr


async def test_watch_writes_lines_where_there_is_no_terminal(job: Job) -> None:
    await job.tell(*FORMED, make.straggler("node-1", 1), make.MOVE.proposed())
    job.register()
    once = job.run("watch", "--once")
    assert once.returncode == ExitCode.OK, once.stderr
    assert "i-1 straggler node-1" in once.stdout
    assert "trainmover migration approve|reject m-0001" in once.stdout
    assert "\x1b" not in once.stdout
    await job.tell(make.MOVE.committed(), JobFinished(epoch=2, step=99))
    over = job.run("watch")
    assert over.returncode == ExitCode.OK
    assert "job j  finished  epoch 2  step 99" in over.stdout
    await job.tell(JobFailed(reason="no state", next_step="Start from the checkpoint."))
    assert job.run("watch").returncode == ExitCode.FAILED


async def test_operators_steer_with_who_and_why(job: Job) -> None:
    async def steered(bus: NatsBus, verb: str, body: bytes) -> Frozen:
        return RequestAccepted(migration=None, words=f"{verb} it is")

    await job.tell(*FORMED)
    job.register()
    with Planner(job.url, steered) as planner:
        paused = job.run("automation", "pause", "--reason", "night", "--by", "ada", "-o", "json")
        job.run("automation", "resume", "--approval", env={"TRAINMOVER_OPERATOR": "bob"})
        job.run("machine", "quarantine", "node-2", "--dry-run")
        released = job.run("machine", "unquarantine", "node-2", "-o", "yaml")
        job.run("migration", "reject", "m-0001")
        job.run("migration", "abort", "m-0001")
        bad = job.run("machine", "quarantine", "node.2")
    assert json.loads(paused.stdout)["words"] == "automation it is"
    assert 'words: "unquarantine it is"' in released.stdout
    assert bad.returncode == ExitCode.USAGE
    asked = [(verb, json.loads(body)) for verb, body in planner.seen]
    assert [verb for verb, _ in asked] == [
        *("automation", "automation", "quarantine", "unquarantine", "reject", "abort"),
    ]
    assert (asked[0][1]["mode"], asked[0][1]["reason"]) == ("paused", "night")
    assert asked[0][1]["requested_by"] == "ada"
    assert (asked[1][1]["mode"], asked[1][1]["requested_by"]) == ("approval", "bob")
    assert asked[2][1]["dry_run"] is True
    assert asked[5][1]["migration"] == "m-0001"


async def test_status_names_what_waits_for_an_operator(job: Job) -> None:
    await job.tell(*FORMED, make.MOVE.proposed())
    job.register()
    shown = job.run("status")
    assert "m-0001 waits to move node-1 away" in shown.stdout
    assert "trainmover migration reject m-0001" in shown.stdout


async def test_watch_redraws_on_a_terminal(job: Job) -> None:
    await job.tell(*FORMED, make.MOVE.proposed())
    job.register()
    ours, theirs = pty.openpty()
    watch = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trainmover_console.cli", "watch"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TRAINMOVER_HOME": str(job.home), "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    seen = b""
    while b"waits for you" not in seen:
        seen += await asyncio.to_thread(os.read, ours, 65536)
    await job.tell(JobFinished(epoch=1, step=99))
    with contextlib.suppress(OSError):  # the other end is closed
        while data := await asyncio.to_thread(os.read, ours, 65536):
            seen += data
    os.close(ours)
    assert await watch.wait() == ExitCode.OK
    assert b"\x1b[" in seen
    last = b"".join(seen.split(b"waits for you")[-2:])
    assert b"finished" in last
