"""Names, numbers and announcements: what people and their tools get wrong is told, or harmless."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping

import pytest

from trainmover.bus.memory.bus import MemoryBus
from trainmover.detection.registry import load
from trainmover.errors import ConfigError, TrainMoverError
from trainmover.events.machine import MachineNoticed
from trainmover.testing import collect
from trainmover_console.dashboard.feed import Feed
from trainmover_console.view.jsonable import dumps
from trainmover_console.view.live import Watched
from trainmover_gateway.notices.watch import watch


@pytest.mark.parametrize(
    "wrong", [{"shadow": ["stragler"]}, {"names": ["nothing"]}, {"settings": {"hangs": {}}}]
)
def test_a_misspelt_detector_is_an_error_and_not_active(wrong: Mapping[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"no detector is named .*known are"):
        load(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_every_page_can_read_the_numbers(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"a": [number, {"b": (number, 1.5)}], "c": "NaN"}
    assert json.loads(dumps(data)) == {"a": [None, {"b": [None, 1.5]}], "c": "NaN"}
    assert dumps({"a": 1.5}) == '{"a":1.5}'
    monkeypatch.setattr(Watched, "rate", lambda watched, now: number)
    picture = Feed(Watched("j")).state()
    assert json.loads(picture, parse_constant=pytest.fail)["rate"] is None


async def test_a_watcher_that_starts_over_takes_back_what_is_over() -> None:
    """What it had announced before stayed announced for ever."""
    notice = MachineNoticed(machine="w-1", kind="maintenance", source="slurm", leaves_in_s=30)
    other = MachineNoticed(machine="w-2", kind="maintenance", source="operator")
    async with MemoryBus() as bus:
        await bus.setup()
        from trainmover_gateway.notices.watch import publish

        await publish(bus, job="j", notice=notice)
        await publish(bus, job="j", notice=other)
        asked = asyncio.Event()
        failures = [TrainMoverError("the source is away")]

        async def source() -> Mapping[str, MachineNoticed]:
            if failures:
                raise failures.pop()
            asked.set()
            return {}

        task = asyncio.ensure_future(watch(bus, job="j", source=source, every_s=0.01, name="slurm"))
        facts = await collect(bus.events("j"), 3)
        await asked.wait()
        task.cancel()
    said = [fact.payload.payload for fact in facts]
    assert [(one.machine, one.cleared) for one in said] == [
        ("w-1", False),
        ("w-2", False),
        ("w-1", True),
    ]
