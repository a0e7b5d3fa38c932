"""The relay as a process, against a real receiver that fails, and killed in between."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.unit import factories as make

from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.streams import DEAD_STREAM
from trainmover.tracing.observe import new_event
from trainmover_gateway.relay import Relay, Secret, Selection
from trainmover_gateway.relay.policy import ATTEMPTS
from trainmover_gateway.relay.webhook import sign

JOB = "gpt"
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
MOVE = make.Move(
    "m-0001", slot=1, leaver="w1", joiner="w2", after=make.membership_of("w0", "w2", epoch=2)
)


class Receiver:
    """An HTTP server that answers as told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: deque[int] = deque()
        self.seen: list[tuple[dict[str, str], bytes, int]] = []
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                with receiver._changed:
                    status = receiver.answers.popleft() if receiver.answers else 204
                    receiver.seen.append((headers, body, status))
                    receiver._changed.notify_all()
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def wait(self, count: int, *, timeout_s: float = 30) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.seen) >= count, timeout_s), self.types()

    def types(self, *, taken: bool = False) -> list[str]:
        """What was posted, in order."""
        return [
            json.loads(body)["type"].split(".")[-2]
            for _, body, status in self.seen
            if status < 300 or not taken
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


class RelayProcess:
    """``trainmover relay`` as a user starts it."""

    def __init__(self, url: str, to: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "trainmover_console.cli",
                    "relay",
                    "--to",
                    to,
                    "--job",
                    JOB,
                ),
                *("--nats", url, *arguments),
            ],
            env={**os.environ, "TRAINMOVER_RELAY_SECRET": SECRET},
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, number: signal.Signals) -> str:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return errors

    def __enter__(self) -> RelayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)


async def publish(url: str, *payloads: Any) -> None:
    async with NatsBus(url) as bus:
        await bus.setup()
        for payload in payloads:
            source = make.source_of(payload)
            await bus.publish(new_event(job=JOB, source=source, payload=payload))


async def test_a_failing_receiver_gets_every_fact_in_order(
    nats_url: str, receiver: Receiver
) -> None:
    receiver.answers.extend([503, 500])
    await publish(nats_url, make.progress("w0", 0, 1), MOVE.proposed(), MOVE.preparing())
    with RelayProcess(nats_url, receiver.url, "--type", "migration.*") as relay:
        receiver.wait(4)
        await publish(nats_url, MOVE.committed())
        receiver.wait(5)
        assert relay.process.poll() is None
        relay.end(signal.SIGTERM)
        assert relay.process.returncode == 0
    assert receiver.types() == ["proposed", "proposed", "proposed", "preparing", "committed"]
    ids = {headers["webhook-id"] for headers, _, _ in receiver.seen[:3]}
    assert len(ids) == 1
    for headers, body, _ in receiver.seen:
        assert headers["content-type"].startswith("application/cloudevents+json")
        expected = sign(
            Secret.parse(SECRET),
            id=headers["webhook-id"],
            timestamp=headers["webhook-timestamp"],
            body=body,
        )
        assert headers["webhook-signature"] == expected


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_is_lost_over_a_restart(
    nats_url: str, receiver: Receiver, number: signal.Signals
) -> None:
    """Killed while it retries; what happens meanwhile comes afterwards, and nothing twice."""
    receiver.answers.extend([204, 503, 503])
    await publish(nats_url, MOVE.proposed(), MOVE.preparing())
    with RelayProcess(nats_url, receiver.url, "--type", "migration.*") as relay:
        receiver.wait(2)
        relay.end(number)
    await publish(nats_url, MOVE.committed())
    taken = len(receiver.types(taken=True))
    with RelayProcess(nats_url, receiver.url, "--type", "migration.*"):
        receiver.wait(len(receiver.seen) + 3 - taken)
        while len(receiver.types(taken=True)) < 3:
            receiver.wait(len(receiver.seen) + 1)
    assert receiver.types(taken=True) == ["proposed", "preparing", "committed"]


async def test_an_event_that_is_refused_does_not_hold_up_the_others(
    nats_url: str, receiver: Receiver
) -> None:
    receiver.answers.extend([422] * ATTEMPTS)
    await publish(nats_url, MOVE.proposed(), MOVE.committed())
    waited: list[float] = []

    async def sleep(delay_s: float) -> None:
        waited.append(delay_s)

    async with NatsBus(nats_url, ack_wait_s=1) as bus:
        relay = Relay(
            bus, job=JOB, to=receiver.url, selection=Selection.of(["migration.*"]), sleep=sleep
        )
        running = asyncio.create_task(relay.run())
        await asyncio.to_thread(receiver.wait, ATTEMPTS + 1)
        running.cancel()
        await asyncio.wait([running])
        letter = await bus.client.jetstream().get_msg(DEAD_STREAM, 1)
    assert len(receiver.seen) == ATTEMPTS + 1
    assert receiver.types(taken=True) == ["committed"]
    assert len(waited) == ATTEMPTS - 1
    assert (letter.headers or {})["tm-kind"] == "refused"
    assert "422" in (letter.headers or {})["tm-reason"]


async def test_a_fact_is_held_while_the_receiver_makes_us_wait(
    nats_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than the bus waits for an acknowledgement, and still nothing is posted twice."""
    monkeypatch.setattr("trainmover_gateway.relay.service._KEEP_S", 0.1)
    receiver.answers.append(503)
    await publish(nats_url, MOVE.proposed(), MOVE.committed())

    async def sleep(_: float) -> None:
        await asyncio.sleep(1.2)

    async with NatsBus(nats_url, ack_wait_s=0.4) as bus:
        relay = Relay(
            bus, job=JOB, to=receiver.url, selection=Selection.of(["migration.*"]), sleep=sleep
        )
        running = asyncio.create_task(relay.run())
        await asyncio.to_thread(receiver.wait, 3)
        running.cancel()
        await asyncio.wait([running])
    assert receiver.types(taken=True) == ["proposed", "committed"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--to", "ftp://x"), "is no URL to post to"),
        (("--to", "http://x", "--type", "migraton.*"), "no fact is called"),
        (("--to", "http://x", "--secret-file", "/nowhere"), "cannot read --secret-file"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...], hint: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainmover_console.cli", "relay", *arguments),
            *("--job", JOB, "--nats", "nats://127.0.0.1:1"),
        ],
        env={**os.environ, "TRAINMOVER_HOME": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done
    assert hint in done.stderr
