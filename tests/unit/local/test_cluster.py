"""The supervisor against fake machines and services: how it ends, and that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from tests.unit import factories as make
from tests.unit.factories import membership_of as membership

from trainmover.bus.nats.bus import NatsBus
from trainmover.errors import ConfigError
from trainmover.events.envelope import Envelope
from trainmover.events.migration import JobFailed, JobFormed
from trainmover.events.operator import ServiceRestarted
from trainmover.job.topology import Frozen, job_size
from trainmover.runtime import procfs
from trainmover.tracing.observe import new_event
from trainmover_launcher import registry
from trainmover_launcher.cluster import LocalCluster, Notice
from trainmover_launcher.keeper import Pauses
from trainmover_launcher.ledger import Ending
from trainmover_launcher.spec import ClusterSpec

MACHINE = """
import os, pathlib, subprocess, sys, time
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
draft = folder / f"{name}.pid"
draft.write_text(str(child.pid))
draft.replace(folder / f"{name}.child")
while True:
    code = folder / f"{name}.exit"
    if code.exists():
        child.kill()
        sys.exit(int(code.read_text()))
    time.sleep(0.02)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSpec(ClusterSpec):
    folder: Path

    def service_argv(self, name: str) -> list[str]:
        return ["sleep", "600"]

    def agent_argv(self, machine: str) -> list[str]:
        return [sys.executable, "-c", MACHINE, machine, str(self.folder)]

    def let_exit(self, machine: str, code: int) -> None:
        draft = self.folder / f"{machine}.draft"
        draft.write_text(str(code))
        draft.replace(self.folder / f"{machine}.exit")

    def children(self) -> Iterator[int]:
        for file in self.folder.glob("*.child"):
            yield int(file.read_text())


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSpec:
    monkeypatch.setenv("TRAINMOVER_HOME", str(tmp_path / "home"))
    folder = tmp_path / "machines"
    folder.mkdir()
    return FakeSpec(
        job="j",
        nnodes_min=2,
        nnodes_max=3,
        program=("train.py",),
        log_dir=tmp_path / "logs",
        folder=folder,
    )


def test_the_address_of_the_bus_is_on_no_command_line(tmp_path: Path) -> None:
    """It may have a password, and everybody on the host can read command lines."""
    spec = ClusterSpec(
        job="j",
        nnodes_min=1,
        nnodes_max=1,
        program=("train.py",),
        log_dir=tmp_path,
        nats="nats://me:s3cret@bus:4222",
    )
    lines = [spec.agent_argv("node-0"), spec.service_argv("planner"), spec.service_argv("detector")]
    assert "s3cret" not in str(lines)


class Play:
    """Runs a cluster and lets a script act once it has started."""

    def __init__(self, spec: FakeSpec) -> None:
        self.spec = spec
        self.notices: list[Notice] = []
        self.facts: list[Frozen] = []
        self.url = ""
        self.record: registry.JobRecord | None = None
        self._up = asyncio.Event()
        self._news = asyncio.Event()
        self.cluster = LocalCluster(
            spec, notify=self._notify, observe=self._observe, started=self._started
        )

    def _notify(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._news.set()

    def _observe(self, event: object) -> None:
        self.facts.append(event.payload)  # type: ignore[attr-defined]
        self._news.set()

    def _started(self, url: str) -> None:
        self.url = url
        self.record = registry.find(None)
        self._up.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def form(self) -> None:
        fact = JobFormed(membership=membership("node-0", "node-1"), standbys=("node-2",))
        await self.say(fact)
        await self.until(lambda: self.facts)

    async def say(self, fact: Frozen) -> None:
        async with NatsBus(self.url) as bus:
            await bus.publish(new_event(job="j", source=make.source_of(fact), payload=fact))

    async def up(self) -> dict[str, int]:
        await self._up.wait()
        assert self.record is not None
        async with asyncio.timeout(10):
            while len(list(self.spec.folder.glob("*.child"))) < self.spec.nnodes_max:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return dict(self.record.processes)

    def nothing_left(self) -> bool:
        assert self.record is not None
        pids = [*self.record.processes.values(), *self.spec.children()]
        return registry.jobs() == [] and not any(is_alive(pid) for pid in pids)


def is_alive(pid: int) -> bool:
    stat = procfs.read_stat(pid)
    return stat is not None and stat.state != "Z"


async def play(spec: FakeSpec, script: Callable[[Play], object]) -> tuple[Play, Ending]:
    one = Play(spec)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(one.cluster.run())
        await script(one)  # type: ignore[misc]
    return one, running.result()


async def test_ends_well_when_active_machines_finish_and_ends_the_standby(spec: FakeSpec) -> None:
    async def script(one: Play) -> None:
        await one.up()
        await one.form()
        spec.let_exit("node-0", 0)
        spec.let_exit("node-1", 0)

    one, ending = await play(spec, script)
    assert ending.ok
    assert one.nothing_left()
    assert one.notices == []


async def test_bus_and_services_are_started_again_and_training_goes_on(spec: FakeSpec) -> None:
    async def script(one: Play) -> None:
        pids = await one.up()
        await one.form()
        for name in ("bus", "detector", "planner"):
            os.kill(pids[name], signal.SIGKILL)
        await one.until(lambda: sum(isinstance(f, ServiceRestarted) for f in one.facts) == 3)
        assert is_alive(pids["node-0"])
        now = registry.find(None).processes
        assert all(is_alive(pid) for pid in now.values())
        assert {name for name in pids if now[name] != pids[name]} == {"bus", "detector", "planner"}
        one.record = registry.find(None)
        spec.let_exit("node-0", 0)
        spec.let_exit("node-1", 0)

    one, ending = await play(spec, script)
    assert ending.ok
    assert one.nothing_left()
    told = {notice.text.split()[1]: notice.text for notice in one.notices}
    assert set(told) == {"bus", "detector", "planner"}
    assert all("raining continues" in text for text in told.values())
    assert all("started again in 0.5 s" in text for text in told.values())


async def test_a_service_that_ends_each_time_is_told_and_ends_nothing(spec: FakeSpec) -> None:
    class Broken(FakeSpec):
        def service_argv(self, name: str) -> list[str]:
            return ["false"] if name == "planner" else ["sleep", "600"]

    broken = Broken(**{each.name: getattr(spec, each.name) for each in fields(spec)})

    async def script(one: Play) -> None:
        await one.up()
        await one.form()
        await one.until(lambda: len(one.notices) >= 3)
        assert [re.search("again in (.* s)[)]", notice.text)[1] for notice in one.notices[:3]] == [
            "0.5 s",
            "1 s",
            "2 s",
        ]
        spec.let_exit("node-0", 0)
        spec.let_exit("node-1", 0)

    one, ending = await play(broken, script)
    assert ending.ok
    assert one.nothing_left()


async def test_a_fact_that_an_observer_trips_over_is_set_aside(spec: FakeSpec) -> None:
    async def script(one: Play) -> None:
        await one.up()
        one.cluster._observe = lambda _: 1 / 0
        await one.say(JobFormed(membership=membership("node-0", "node-1"), standbys=()))
        await one.until(lambda: any("is set aside" in notice.text for notice in one.notices))
        spec.let_exit("node-0", 0)
        spec.let_exit("node-1", 0)

    _, ending = await play(spec, script)
    assert ending.ok


def test_pauses_grow_and_are_forgiven() -> None:
    pauses = Pauses(first_s=1.0, longest_s=5.0, forgiven_s=60.0)
    assert [pauses.after(ran) for ran in (0, 1, 2, 3, 4, 100, 0)] == [1, 2, 4, 5, 5, 1, 2]


async def test_an_interrupt_ends_everything_even_what_a_killed_machine_left_behind(
    spec: FakeSpec,
) -> None:
    async def script(one: Play) -> None:
        pids = await one.up()
        os.kill(pids["node-1"], signal.SIGKILL)
        await one.until(lambda: one.notices)
        assert all(map(is_alive, spec.children()))
        one.cluster.stop("interrupted by SIGINT")

    one, ending = await play(spec, script)
    assert not ending.ok
    assert one.cluster.interrupted
    assert one.nothing_left()


async def test_ends_although_the_bus_swallows_that_it_was_cancelled(
    spec: FakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, reached = NatsBus.publish, asyncio.Event()

    async def swallowing(bus: NatsBus, fact: Envelope) -> None:
        if fact.source != "/launcher":
            await publish(bus, fact)
            return
        reached.set()
        with contextlib.suppress(asyncio.CancelledError):  # as wait_for may until Python 3.12
            await asyncio.Event().wait()

    monkeypatch.setattr(NatsBus, "publish", swallowing)

    async def script(one: Play) -> None:
        pids = await one.up()
        await one.form()
        os.kill(pids["planner"], signal.SIGKILL)
        await reached.wait()
        one.record = registry.find(None)
        spec.let_exit("node-0", 0)
        spec.let_exit("node-1", 0)

    one, ending = await play(spec, script)
    assert ending.ok
    assert one.nothing_left()


def end_of(pid: int) -> asyncio.Event:
    """Set once a process, of whomever, has ended."""
    ended, loop, handle = asyncio.Event(), asyncio.get_running_loop(), os.pidfd_open(pid)

    def over() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        ended.set()

    loop.add_reader(handle, over)
    return ended


async def test_kills_every_process_of_a_machine(spec: FakeSpec) -> None:
    async def script(one: Play) -> None:
        pids = await one.up()
        child = int((spec.folder / "node-1.child").read_text())
        ended = end_of(child)
        assert set(one.cluster.kill_machine("node-1")) == {pids["node-1"], child}
        await one.until(lambda: one.notices)
        await ended.wait()  # it may die later than its parent
        assert one.cluster.pid_of("node-1") is None
        one.cluster.stop("enough")

    await play(spec, script)


async def test_says_why_the_job_failed(spec: FakeSpec) -> None:
    async def script(one: Play) -> None:
        await one.up()
        await one.say(JobFailed(reason="no machine left", next_step="Add machines."))

    one, ending = await play(spec, script)
    assert ending == Ending(ok=False, reason="no machine left", next_step="Add machines.")
    assert one.nothing_left()


async def test_a_second_job_of_the_same_name_is_refused(spec: FakeSpec) -> None:
    async def script(one: Play) -> None:
        await one.up()
        record = registry.find("j")
        with pytest.raises(ConfigError, match="already runs here"):
            registry.write(record.model_copy(update={"pid": os.getppid()}))
        one.cluster.stop("enough")

    await play(spec, script)


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from trainmover_launcher.process import Child\n"
        "async def main():\n"
        "    child = Child.start('x', ['sleep', '600'])\n"
        "    print(child.pid, flush=True)\n"
        "    await child.exited.wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        pidfd = os.pidfd_open(child)
        supervisor.kill()
    try:
        import select

        assert select.select([pidfd], [], [], 10)[0]
    finally:
        os.close(pidfd)


@pytest.mark.parametrize(("text", "wanted"), [("4:6", (4, 6)), ("4", (4, 4)), ("1:1", (1, 1))])
def test_nnodes(text: str, wanted: tuple[int, int]) -> None:
    assert job_size(slots=None, standbys=None, nnodes=text) == wanted


@pytest.mark.parametrize("text", ["", "0", "4:", "6:4", "a:b", "4:6:8", "-1"])
def test_nnodes_that_make_no_job(text: str) -> None:
    with pytest.raises(ConfigError, match="--nnodes"):
        job_size(slots=None, standbys=None, nnodes=text)
