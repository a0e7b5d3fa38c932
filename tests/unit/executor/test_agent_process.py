"""The agent as a process, over a real NATS server: signals, sudden deaths, options."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.commands import BreakStep, Start
from trainmover.errors import ConfigError, InvalidIdError
from trainmover.events.machine import MachineRegistered
from trainmover.job.topology import Layout, Member, Membership
from trainmover_executor.agent.incarnation import private_folder
from trainmover_executor.agent.options import parse
from trainmover_executor.messages.worker import Done, Hello

ME = "node-0"


class Running:
    """An agent process with two training puppets."""

    def __init__(self, process: asyncio.subprocess.Process, bus: NatsBus, job: str) -> None:
        self.process = process
        self.bus = bus
        self.job = job
        self.puppets: list[Any] = []

    async def code(self) -> int:
        async with asyncio.timeout(20):
            return await self.process.wait()


@asynccontextmanager
async def training(url: str, director: Any, entry: str) -> AsyncIterator[Running]:
    job = f"job-{uuid.uuid4().hex[:8]}"
    arguments = ["--job", job, "--nats", url, "--machine", ME, "--nnodes", "1:2"]
    arguments += ["--nproc-per-node", "2", "--worker-entry", entry, "--", "train.py", "--lr", "1"]
    async with NatsBus(url) as bus:
        await bus.setup()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trainmover_executor.agent", *arguments
        )
        try:
            running = Running(process, bus, job)
            async with asyncio.timeout(30):
                async for delivery in bus.events(job, entity="machine"):
                    registered = delivery.payload.payload
                    break
            assert isinstance(registered, MachineRegistered)
            generation = registered.machine.generation
            assert generation > 0  # no earlier agent of this machine can have had it
            assert registered.pid == process.pid
            member = Member(
                machine=ME, generation=generation, endpoints=registered.machine.endpoints
            )
            membership = Membership(
                epoch=1, layout=Layout(slots=1, ranks_per_slot=2), members=(member,)
            )
            start = Start(generation=generation, slot=0, membership=membership)
            await bus.send_command(job, ME, start, id="start")
            for _ in range(2):
                puppet = await director.next()
                puppet.say(Hello(rank=puppet.about["rank"], pid=puppet.pid))
                running.puppets.append(puppet)
            yield running
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_second_agent_of_one_name_waits_until_the_first_has_ended(
    shared_server: EmbeddedServer, director: Any, puppet_entry: str
) -> None:
    """Hosts that are copies of one image: the job formed with neither, and nobody said why."""
    async with training(shared_server.url, director, puppet_entry) as one:
        arguments = ["--job", one.job, "--nats", shared_server.url, "--machine", ME]
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trainmover_executor.agent", *arguments, "--", "train.py"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            assert second.stdout is not None
            async with asyncio.timeout(30):
                said = b""
                while b"agent.name_is_taken" not in said:
                    said = await second.stdout.readline()
                    assert said
            assert b"--machine" in said
            one.process.kill()
            async with asyncio.timeout(30):
                async for delivery in one.bus.events(one.job, entity="machine", fact="registered"):
                    if delivery.payload.payload.pid == second.pid:
                        break
        finally:
            second.kill()
            await second.wait()


async def test_a_killed_agent_leaves_nobody_behind(
    shared_server: EmbeddedServer, director: Any, puppet_entry: str, until_gone: Any
) -> None:
    async with training(shared_server.url, director, puppet_entry) as one:
        one.puppets[0].do("fork")
        grandchild = await director.next()
        one.process.kill()
        for puppet in (*one.puppets, grandchild):
            await until_gone(puppet.pid, within_s=1)
        await until_gone(one.puppets[0].about["server"], within_s=1)


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
async def test_a_signal_ends_the_machine(
    *,
    shared_server: EmbeddedServer,
    director: Any,
    puppet_entry: str,
    until_gone: Any,
    signum: int,
    code: int,
) -> None:
    async with training(shared_server.url, director, puppet_entry) as one:
        one.process.send_signal(signum)
        assert await one.code() == code
        for puppet in one.puppets:
            await until_gone(puppet.pid, within_s=1)


@pytest.mark.long
async def test_the_bus_may_be_killed_for_good(
    nats_server: EmbeddedServer, director: Any, puppet_entry: str
) -> None:
    async with training(nats_server.url, director, puppet_entry) as one:
        await one.bus.send_command(one.job, ME, BreakStep(epoch=1, reason="test"), id="b")
        for puppet in one.puppets:
            async with asyncio.timeout(5):
                assert (await puppet.heard.get())["verb"] == "break_step"
        nats_server.kill()
        for puppet in one.puppets:
            puppet.say(Done(rank=puppet.about["rank"], step=5))
            puppet.do("exit", code=0)
        assert await one.code() == 0


# -- options ----------------------------------------------------------------------------------

BASE = ["--job", "demo", "--machine", "node-0"]


def test_the_program_keeps_its_own_options() -> None:
    line = [*BASE, "--nnodes", "4:6", "--label", "rack=r1", "-m", "--", "my.module", "-m", "--x=1"]
    service, options = parse(line)
    assert service.job == "demo"
    assert options.program == ("my.module", "-m", "--x=1")
    assert options.as_module
    assert (options.nnodes_min, options.nnodes_max) == (4, 6)
    assert options.labels == {"rack": "r1"}


def test_one_number_means_no_standby() -> None:
    _, options = parse([*BASE, "--nnodes", "3", "--", "train.py"])
    assert (options.nnodes_min, options.nnodes_max) == (3, 3)


@pytest.mark.parametrize("nnodes", ["0", "6:4", "x", "4:", ":4", "-1"])
def test_impossible_node_counts_are_refused(nnodes: str) -> None:
    with pytest.raises(ConfigError, match="4:6"):
        parse([*BASE, f"--nnodes={nnodes}", "--", "train.py"])


def test_a_label_needs_a_value() -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse([*BASE, "--nnodes", "1", "--label", "rack", "--", "train.py"])


def test_a_machine_name_must_fit_a_subject() -> None:
    with pytest.raises(InvalidIdError, match=r"worker\.0"):
        parse(["--job", "demo", "--machine", "worker.0", "--nnodes", "1", "--", "train.py"])


# -- places -----------------------------------------------------------------------------------


def test_a_long_tmpdir_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of unix sockets are short."""
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = private_folder()
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(folder / "123456.sock"))
    finally:
        shutil.rmtree(folder)
