"""The planner's shell: a policy file that changes, breaks and is mended while it plans."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from trainmover.bus.memory.broker import MemoryBroker
from trainmover.bus.memory.bus import MemoryBus
from trainmover.events.operator import PolicyChanged, PolicyRefused
from trainmover.policy import PolicyError
from trainmover.protocol.replies import parse_as
from trainmover.protocol.requests import PolicyRequest, PolicyStatus
from trainmover_planner import policy_file
from trainmover_planner.policy_file import PolicyFiles
from trainmover_planner.service import Planner

JOB = "job"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_file, "LOOK_S", 0.01)


@contextlib.asynccontextmanager
async def planning(broker: MemoryBroker, files: PolicyFiles) -> AsyncIterator[MemoryBus]:
    async with MemoryBus(broker) as bus, asyncio.timeout(20):
        task = asyncio.create_task(Planner(bus, job=JOB, policy=files).run())
        try:
            yield bus
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def heard(bus: MemoryBus, *kinds: type) -> list[PolicyChanged | PolicyRefused]:
    """What was said about policies, until the last of it is of these kinds, in order."""
    found: list[PolicyChanged | PolicyRefused] = []
    async for delivery in bus.events(JOB, entity="policy"):
        payload = delivery.payload.payload
        assert isinstance(payload, PolicyChanged | PolicyRefused)
        found.append(payload)
        if [type(one) for one in found] == list(kinds):
            return found
    raise AssertionError(found)


async def status(bus: MemoryBus) -> PolicyStatus:
    while True:
        with contextlib.suppress(Exception):
            answer = parse_as(
                PolicyStatus, await bus.request(JOB, "policy", PolicyRequest(), timeout_s=1)
            )
            assert isinstance(answer, PolicyStatus)
            return answer
        await asyncio.sleep(0)


async def test_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("keep_reserve: 1")
    broker = MemoryBroker()
    files = PolicyFiles(file, options={"cooldown_s": 5.0})
    async with planning(broker, files) as bus:
        (first,) = await heard(bus, PolicyChanged)
        assert (first.policy.keep_reserve, first.policy.cooldown_s) == (1, 5.0)
        file.write_text("keep_reserv: 2")
        *_, bad = await heard(bus, PolicyChanged, PolicyRefused)
        assert "Did you mean 'keep_reserve'?" in bad.problems[0]
        told = await status(bus)
        assert (told.policy.keep_reserve, told.problems) == (1, bad.problems)
        file.unlink()
        *_, gone = await heard(bus, PolicyChanged, PolicyRefused, PolicyRefused)
        assert "cannot be read" in gone.problems[0]
        link = tmp_path / "other.yaml"  # as a mounted configuration is replaced
        link.write_text("keep_reserve: 2")
        file.symlink_to(link)
        *_, good = await heard(bus, PolicyChanged, PolicyRefused, PolicyRefused, PolicyChanged)
        assert good.policy.keep_reserve == 2
        assert (await status(bus)).problems == ()


async def test_a_successor_learns_it_again(tmp_path: Path) -> None:
    file, shadow = tmp_path / "policy.yaml", tmp_path / "shadow.yaml"
    file.write_text("keep_reserve: 1")
    shadow.write_text("keep_reserve: 9")
    broker = MemoryBroker()
    async with planning(broker, PolicyFiles(file, shadow=shadow)) as bus:
        (first,) = await heard(bus, PolicyChanged)
        assert first.shadow is not None
        assert first.shadow.keep_reserve == 9
    file.write_bytes(b"\xff\xfe")
    async with planning(broker, PolicyFiles(file)) as bus:
        *_, bad = await heard(bus, PolicyChanged, PolicyRefused)
        assert "UTF-8" in bad.problems[0]
        told = await status(bus)
        assert (told.policy.keep_reserve, told.shadow) == (1, first.shadow)
    file.write_text("keep_reserve: 3")
    async with planning(broker, PolicyFiles(file)) as bus:
        *_, good = await heard(bus, PolicyChanged, PolicyRefused, PolicyChanged)
        assert (good.policy.keep_reserve, good.shadow) == (3, None)


async def test_nobody_plans_with_what_nobody_declared(tmp_path: Path) -> None:
    """Defaults act by themselves: whoever wrote a file may have wanted the opposite."""
    file = tmp_path / "policy.yaml"
    file.write_text("automation: pausd")
    async with MemoryBus(MemoryBroker()) as bus, asyncio.timeout(20):
        with pytest.raises(ExceptionGroup) as caught:
            await Planner(bus, job=JOB, policy=PolicyFiles(file)).run()
    assert caught.group_contains(PolicyError, match="'automatic', 'approval' or 'paused'")


async def test_the_defaults_are_no_news() -> None:
    async with planning(MemoryBroker(), PolicyFiles()) as bus:
        assert (await status(bus)).source == "command line"
        assert await bus.event_count(JOB) == 0
