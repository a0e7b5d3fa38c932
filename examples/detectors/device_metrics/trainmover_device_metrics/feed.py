"""The feeder: reads metrics on a machine and publishes them. All the I/O of this plugin is here."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TextIO

from trainmover.bus.nats.bus import NatsBus
from trainmover.events.machine import MachineNoticed
from trainmover.tracing import observe

POLL_S = 0.2
_WORDS = {"active": 1.0, "not active": 0.0, "[n/a]": 0.0, "enabled": 1.0, "disabled": 0.0}


def readings(lines: Iterable[str]) -> Iterator[dict[str, float]]:
    """Each line after the header as numbers by column; ``nvidia-smi --format=csv,nounits``."""
    rows = csv.reader(lines, skipinitialspace=True)
    names: list[str] = []
    for row in rows:
        if not names:
            names = [cell.partition(" [")[0].strip() for cell in row]
            continue
        with contextlib.suppress(ValueError):  # half a line, or another header
            yield {name: _number(cell) for name, cell in zip(names, row, strict=True)}


def _number(cell: str) -> float:
    word = cell.strip().lower()
    return _WORDS[word] if word in _WORDS else float(word)


def _opened(path: Path) -> TextIO:
    """The file from its beginning; it may not be there yet."""
    file = path.open("a+", encoding="utf-8")
    file.seek(0)
    return file


async def follow(path: Path) -> AsyncIterator[str]:
    """Lines of a file that grows, from its beginning."""
    with _opened(path) as file:
        line = ""
        while True:
            line += file.readline()
            if line.endswith("\n"):
                yield line
                line = ""
            else:
                await asyncio.sleep(POLL_S)


async def listen(path: Path) -> AsyncIterator[str]:
    """Lines that somebody writes to a unix socket of ours."""
    lines: asyncio.Queue[str] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            lines.put_nowait(line.decode("utf-8", "replace"))
        writer.close()

    async with await asyncio.start_unix_server(take, path):
        while True:
            yield await lines.get()


async def feed(options: argparse.Namespace) -> None:
    lines = follow(options.file) if options.file else listen(options.socket)
    header = ""
    latest: dict[float, dict[str, float]] = {}
    async with NatsBus(options.nats, name="device-metrics") as bus:
        async for line in lines:
            header = header or line
            for metrics in readings([header, line]):
                device = metrics.get("index", 0.0)
                if metrics == latest.get(device):
                    continue  # a fact holds until the next one
                latest[device] = metrics
                fact = MachineNoticed(
                    machine=options.machine,
                    kind="metrics",
                    source="device-metrics",
                    metrics=metrics,
                )
                event = observe.new_event(
                    job=options.job, source=f"/device-metrics/{options.machine}", payload=fact
                )
                await bus.publish(event)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True)
    parser.add_argument("--nats", default="nats://127.0.0.1:4222")
    parser.add_argument("--machine", required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", type=Path, help="file that metrics are appended to")
    source.add_argument("--socket", type=Path, help="unix socket to listen on")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(feed(parser.parse_args()))


if __name__ == "__main__":
    main()
