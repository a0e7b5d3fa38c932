"""The health file: fresh while the bus answers, and what a container's check makes of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.runtime import health

HEALTHY = Path(__file__).parents[2] / "deploy" / "healthy"


def check(path: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [HEALTHY, *arguments],
        env={**os.environ, health.FILE_VARIABLE: str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


async def test_it_is_fresh_while_the_bus_answers_and_only_then(
    tmp_path: Path, nats_server: EmbeddedServer
) -> None:
    path = tmp_path / "health"
    asked = asyncio.Queue[None]()
    async with NatsBus(nats_server.url, timeout_s=0.2) as bus:

        async def ask() -> None:
            try:
                await bus.ping()
            finally:
                asked.put_nowait(None)

        async def rounds(count: int) -> None:
            for _ in range(count):
                await asked.get()

        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            keeping = group.create_task(health.keep_fresh(path, ask, period_s=0.01))
            await rounds(2)
            assert path.exists()
            nats_server.kill()
            while bus.connected:
                await rounds(1)
            await rounds(2)
            age(path, 100)
            await rounds(2)
            assert time.time() - path.stat().st_mtime > 50
            nats_server.start()
            while time.time() - path.stat().st_mtime > 50:
                await rounds(1)
            keeping.cancel()


def test_the_check_looks_at_the_age(tmp_path: Path) -> None:
    path = tmp_path / "health"
    assert check(path) == (1, "the bus has not answered yet\n")
    path.touch()
    assert check(path) == (0, "")
    age(path, 40)
    assert check(path)[0] == 1
    assert check(path, "60") == (0, "")
