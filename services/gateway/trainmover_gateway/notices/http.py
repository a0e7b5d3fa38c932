"""An HTTP endpoint for announcements: ``POST /v1/machines/NAME/notices`` with a JSON body.

The body is a ``machine.noticed`` payload without the machine: ``{"kind": "maintenance", "reason":
"...", "leaves_in_s": 120}``; ``"cleared": true`` takes it back. 202 says that it is stored, 503
that it was given up. Announcements are stored one after the other, in the order in which they came.
``GET /healthz`` is for probes. With a token, requests need ``Authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import hmac
import json
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from pydantic import ValidationError

from trainmover.errors import TrainMoverError
from trainmover.events.machine import MachineNoticed
from trainmover.job.numbers import decimal

__all__ = ["serving"]

_PATH: Final = re.compile(r"/v1/machines/([A-Za-z0-9_-]{1,64})/notices")
_MOST_BYTES: Final = 16 * 1024
_STORE_S: Final = 10.0
_CALLERS: Final = 64
"""At a time; whoever calls then is told nothing, and calls again."""

_TOLD: Final = 400
_DIGITS: Final = 9

Accept = Callable[[MachineNoticed], Awaitable[None]]


@contextlib.contextmanager
def serving(
    accept: Accept, *, loop: asyncio.AbstractEventLoop, host: str, port: int, token: str = ""
) -> Iterator[int]:
    """Serve in a thread; yields the port, and ends the thread.

    Args:
        accept: Called in ``loop`` with each announcement; stores it.
        loop: A running event loop.
        host: Address to listen on.
        port: Port; 0 for any.
        token: What callers must present; empty for none.
    """
    in_order = asyncio.Lock()  # whoever waits longest is next

    async def store(notice: MachineNoticed) -> None:
        async with in_order:
            await accept(notice)

    class Handler(_Handler):
        def accepted(self, notice: MachineNoticed) -> None:
            storing = asyncio.run_coroutine_threadsafe(store(notice), loop)
            try:
                storing.result(_STORE_S)
            except FutureTimeoutError:
                # Its caller is told so and may say something else next: that must come last.
                storing.cancel()
                raise

        def knows(self, header: str) -> bool:
            return not token or hmac.compare_digest(header.encode(), f"Bearer {token}".encode())

    server = _Server((host, port), Handler)
    thread = threading.Thread(target=server.serve_forever, name="notices-http", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """A thread for each caller, and not too many of them."""

    daemon_threads = True
    request_queue_size = 128
    """With the five of the base class a burst of callers waits for seconds to get in."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._room = threading.BoundedSemaphore(_CALLERS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is one left."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers go away as they like; anything else is a bug, and told."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler, abc.ABC):
    """One request."""

    timeout = 10.0

    @abc.abstractmethod
    def accepted(self, notice: MachineNoticed) -> None:
        """Have a notice stored."""

    @abc.abstractmethod
    def knows(self, header: str) -> bool:
        """Whether the caller may announce anything, by its ``Authorization``."""

    def do_GET(self) -> None:
        """Health."""
        ok = self.path == "/healthz"
        self._reply(200 if ok else 404, {"ok": ok})

    def do_POST(self) -> None:
        """An announcement."""
        status, answer = self._announce()
        self._reply(status, answer)

    def _announce(self) -> tuple[int, dict[str, Any]]:
        if not self.knows(self.headers.get("Authorization", "")):
            return 401, {"error": "the bearer token is missing or wrong"}
        place = _PATH.fullmatch(self.path)
        if place is None:
            return 404, {"error": "POST /v1/machines/NAME/notices"}
        length = decimal(self.headers.get("Content-Length", ""), digits=_DIGITS) or 0
        if not 0 < length <= _MOST_BYTES:
            return 413, {"error": f"a body of 1 to {_MOST_BYTES} bytes is needed"}
        try:
            body = json.loads(self.rfile.read(length), parse_constant=_no_number)
            notice = MachineNoticed.model_validate({"source": "http", **body, "machine": place[1]})
        except (ValueError, TypeError, ValidationError, RecursionError) as error:
            return 400, {"error": str(error)[:_TOLD]}
        return self._store(notice)

    def _store(self, notice: MachineNoticed) -> tuple[int, dict[str, Any]]:
        try:
            self.accepted(notice)
        except (FutureTimeoutError, RuntimeError):
            return 503, {"error": "the bus does not store it now; try again"}
        except TrainMoverError as error:
            return 400, {"error": str(error)[:_TOLD]}
        return 202, {"ok": True, "machine": notice.machine, "kind": notice.kind}

    def _reply(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """What is stored is logged by whoever stores it."""


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number that can be kept")
