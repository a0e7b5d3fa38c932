"""A tool with a key of its own reads facts, and goes on where it left off.

The samples are run as a user would run them, where their language and its client can be had.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.security.conftest import JOB, Secured
from tests.unit import factories as make

from trainmover.errors import PermissionDeniedError
from trainmover.job.topology import Frozen
from trainmover.tracing.observe import new_event

EXAMPLES = Path(__file__).parents[2] / "examples"
_PATIENCE_S = 60.0
_INSTALL_S = 120.0


async def publish(secured: Secured, fact: Frozen) -> None:
    async with secured.bus("planner") as bus:
        await bus.publish(new_event(job=JOB, source="/planner", payload=fact))


async def said_by(command: list[str], *, secured: Secured, name: str, line: str) -> str:
    """What the sample printed up to ``line``; it is ended then, as by Ctrl-C."""
    key = secured.credentials(f"subscriber-{name}").nkey
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TRAINMOVER_NATS_NKEY": str(key), "TRAINMOVER_NATS_CA": ""},
    )
    assert process.stdout is not None
    printed = ""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            async for each in process.stdout:
                printed += each.decode()
                if line in printed:
                    return printed
        raise AssertionError(f"the sample ended: {printed}")
    finally:
        process.terminate()
        await process.wait()


def python(_folder: Path) -> list[str]:
    return [sys.executable, str(EXAMPLES / "subscribe.py")]


def javascript(folder: Path) -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no Node")
    script = shutil.copy(EXAMPLES / "subscribe.mjs", folder)
    clients = ("@nats-io/transport-node@3", "@nats-io/jetstream@3")
    install(npm, "install", "--no-audit", "--no-fund", *clients, folder=folder)
    return [node, str(script)]


def go(folder: Path) -> list[str]:
    compiler = shutil.which("go")
    if compiler is None:
        pytest.skip("there is no Go")
    shutil.copy(EXAMPLES / "subscribe.go", folder)
    install(compiler, "mod", "init", "subscribe", folder=folder)
    install(compiler, "get", "github.com/nats-io/nats.go", folder=folder)
    install(compiler, "build", "-o", "subscribe", "subscribe.go", folder=folder)
    return [str(folder / "subscribe")]


def install(*command: str, folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_INSTALL_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{' '.join(command)} took too long: is there a network?")
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("language", "name"), [(python, "pager"), (javascript, "board"), (go, "archive")]
)
async def test_a_sample_goes_on_where_it_left_off(
    secured: Secured, tmp_path: Path, language: Callable[[Path], list[str]], name: str
) -> None:
    command = [*await asyncio.to_thread(language, tmp_path), secured.server.url, JOB, name]
    after = make.membership_of("node-1", epoch=2)
    moves = [
        make.Move(f"m-{name}-{n}", slot=0, leaver="node-0", joiner="node-1", after=after)
        for n in range(3)
    ]
    for move in moves[:2]:
        await publish(secured, move.proposed())
    first = await said_by(command, secured=secured, name=name, line=moves[1].id)
    assert "migration.proposed" in first
    assert moves[0].id in first
    await publish(secured, moves[2].aborted("asked for"))
    then = await said_by(command, secured=secured, name=name, line=moves[2].id)
    assert "asked for" in then
    assert moves[0].id not in then


async def test_a_subscriber_reads_at_its_own_position_alone(secured: Secured) -> None:
    async with secured.bus("subscriber-pager") as bus:
        with pytest.raises(PermissionDeniedError):
            await anext(bus.events(JOB, durable="board"))
        with pytest.raises(PermissionDeniedError):
            await anext(bus.events(JOB))
