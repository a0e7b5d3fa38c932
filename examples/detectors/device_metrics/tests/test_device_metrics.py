"""The contract of TrainMover's SDK, readings, and the feeder's sources."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from trainmover_device_metrics import DeviceMetricsConfig, DeviceMetricsDetector
from trainmover_device_metrics.feed import follow, listen, readings

from trainmover.detection import Evidence
from trainmover.events.machine import MachineNoticed
from trainmover.testing.contract import DetectorContract

HEADER = "index, temperature.gpu, ecc.errors.uncorrected.volatile.total"
HEADER += ", clocks_event_reasons.hw_slowdown"
NAMED, TAKEN_BACK = ("w-1", False, "move"), ("w-1", True, "none")


class TestContract(DetectorContract):
    detector = DeviceMetricsDetector


def judge(*rows: str, then_s: float = 0.0) -> list[tuple[str | None, bool, str]]:
    """What is said when a row comes each second, and when ``then_s`` more have passed."""
    detector = DeviceMetricsDetector(DeviceMetricsConfig(hot_s=3.0))
    said = []
    for now_s, metrics in enumerate(readings([HEADER, *rows])):
        fact = MachineNoticed(machine="w-1", kind="metrics", metrics=metrics)
        said += detector.notice(Evidence(fact, None, float(now_s)))
    said += detector.tick(len(rows) - 1 + then_s)
    return [(one.machine, one.closed, one.advice) for one in said]


@pytest.mark.parametrize(
    "rows",
    [
        ("0, 95, 0, Not Active", *("1, 50, 0, Not Active",) * 3),
        ("0, 60, 2, Not Active",),
        ("0, 60, 0, Active", "1, 60, 0, Not Active"),
    ],
)
def test_a_device_that_is_hot_forgetful_or_throttled_is_to_leave(rows: tuple[str, ...]) -> None:
    assert judge(*rows) == [NAMED]


def test_a_reading_holds_until_the_next() -> None:
    assert judge("0, 95, 0, Not Active", then_s=2.9) == []
    assert judge("0, 95, 0, Not Active", then_s=3.0) == [NAMED]
    assert judge("0, 95, 0, Not Active", "0, 60, 0, Not Active", then_s=99.0) == []


def test_a_sound_device_is_left_alone_and_one_that_recovers_is_taken_back() -> None:
    assert judge("0, 60, 0, Not Active", "0, 95, [N/A], Not Active", "half a li") == []
    assert judge("0, 60, 0, Active", "0, 60, 0, Not Active") == [NAMED, TAKEN_BACK]
    assert judge("0, 60, 0, Active", "1, 60, 0, Active", "0, 60, 0, Not Active") == [NAMED]


async def test_lines_come_from_a_file_that_grows_and_from_a_socket(tmp_path: Path) -> None:
    file, socket = tmp_path / "gpu.csv", tmp_path / "gpu.sock"
    file.write_text("a\nb")
    lines = follow(file)
    assert await anext(lines) == "a\n"
    with file.open("a") as more:
        more.write("c\n")
    assert await anext(lines) == "bc\n"
    await lines.aclose()
    heard = asyncio.ensure_future(anext(listen(socket)))
    while not socket.exists():  # noqa: ASYNC110 - a file says that the server listens
        await asyncio.sleep(0.01)
    _, writer = await asyncio.open_unix_connection(socket)
    writer.write(b"d\n")
    await writer.drain()
    assert await heard == "d\n"
    writer.close()
    await writer.wait_closed()
