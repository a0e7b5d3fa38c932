"""Runs a web application beside other tasks of one event loop, until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator
from typing import Any

import uvicorn

from trainmover.errors import ConfigError

__all__ = ["listen", "serve"]


class _Server(uvicorn.Server):
    """Leaves signals to us: the rest of the process has to end, too."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: The address is taken, or is not ours.
    """
    try:
        return socket.create_server((host, port), reuse_port=False)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. "
            "Name another with --host and --port; port 0 takes a free one."
        ) from error


async def serve(
    app: Any, listener: socket.socket, *, closing: Callable[[], None]
) -> signal.Signals:
    """Serve until SIGINT or SIGTERM, and tell which.

    Args:
        app: An ASGI application.
        listener: Where callers come in.
        closing: Called first at the end: lets go of whoever listens to endless answers.
    """
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        closing()
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await server.serve(sockets=[listener])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return received[0] if received else signal.SIGTERM
