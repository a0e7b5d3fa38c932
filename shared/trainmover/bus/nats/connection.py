"""One connection to a NATS server: outages, forbidden subjects and time limits made plain.

Every operation of ``NatsBus`` runs inside ``Connection.calling``, which knows whether the server
is reachable, gives up in time, and turns what nats-py raises into our own errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from trainmover.bus.credentials import BusAddress, Credentials
from trainmover.bus.nats.client import PermissionAwareClient, forbidden, refusal_of
from trainmover.bus.streams import stream_configs
from trainmover.errors import BusError, BusUnavailableError
from trainmover.tracing.observe import get_logger

__all__ = ["Connection", "heeding_cancellation"]

_log = get_logger(__name__)
_VIOLATION: Final = re.compile(
    r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE
)
_IDENTITY: Final = re.compile(r"authorization|ssl|tls|certificate", re.IGNORECASE)
_CURES: Final = {
    10026: ". The account's max_consumers is below what a stream takes: leave it out.",
    10027: ". The account's max_streams is too low: leave it out.",
    10047: ". Streams reserve {reserved} in all: raise max_file of the account, or of the server.",
    10059: ". Run 'trainmover bus setup' on this bus.",  # stream not found
    10166: ". An older version set it up: run 'trainmover bus setup' once more.",  # TTL disabled
}
_CLOSE_S: Final = 0.7
_RECONNECT_WAIT_S: Final = 0.1


@contextlib.contextmanager
def heeding_cancellation() -> Iterator[None]:
    """Raise a cancellation that came within, and that what was awaited there has dropped.

    Python 3.11's ``wait_for``, which nats-py awaits answers with, drops one that comes in the same
    moment as the answer, or as an error. nats-py itself drops one that comes while it has its
    flusher woken, which each publishing does: whoever pressed Ctrl-C then waited for ever.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError


class Connection:
    """A connection that outlives its server.

    Args:
        url: ``nats://host:port``, or several separated by commas; with ``user:password@`` where
            the server wants that.
        name: Who we are, for the server's own monitoring.
        timeout_s: How long one operation may take before the bus counts as unavailable, seconds.
        connect_timeout_s: Limit for the first connection, seconds.
        credentials: Who we are; from the environment when omitted.
        options: Passed to nats-py as well.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        timeout_s: float,
        connect_timeout_s: float,
        credentials: Credentials | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._address = BusAddress.parse(url)
        self.url = str(self._address)
        self.timeout_s = timeout_s
        self._name = name
        self._connect_timeout_s = connect_timeout_s
        self._credentials = credentials
        self._options = dict(options or {})
        self._client = PermissionAwareClient()
        self._up = asyncio.Event()
        self._closing = True  # until it is open
        self._last_error = ""
        self._identity_error = ""
        self._refused_subscriptions: set[str] = set()
        self._warned: set[str] = set()
        self._calls: set[asyncio.Timeout] = set()
        self._on_lost: list[Callable[[], Awaitable[None]]] = []
        self._on_back: list[Callable[[], Awaitable[None]]] = []
        self._on_up: set[Callable[[], None]] = set()

    @property
    def client(self) -> Client:
        """The nats-py client."""
        return self._client

    @property
    def connected(self) -> bool:
        """Whether the server is reachable, as far as is known."""
        return not self._closing and self._up.is_set() and self._client.is_connected

    @property
    def closing(self) -> bool:
        """Whether we are on our way out, never came in, or were thrown out for good."""
        return self._closing or self._client.is_closed

    def jetstream(self) -> JetStreamContext:
        """The JetStream side of this connection."""
        return self._client.jetstream(timeout=self.timeout_s)

    def on_lost(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await ``callback`` each time the server is lost."""
        self._on_lost.append(callback)

    def on_back(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await ``callback`` each time the server is back."""
        self._on_back.append(callback)

    @contextlib.contextmanager
    def on_up(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` after every reconnect, while the context lasts."""
        self._on_up.add(callback)
        try:
            yield
        finally:
            self._on_up.discard(callback)

    async def open(self) -> None:
        """Connect.

        Raises:
            BusUnavailableError: Nobody answers at the address in time.
            PermissionDeniedError: The server does not know this user.
            ConfigError: The credentials cannot be used.
        """
        credentials = self._credentials or Credentials.from_environment()
        options = {**self._address.identity, **credentials.options(), **self._options}
        if "tls" in options:
            logging.getLogger("asyncio").addFilter(_is_worth_saying)  # the same one is kept once
        self._up.clear()
        # A client whose connect failed cannot be used again.
        self._client = PermissionAwareClient(demands_tls="tls" in options)
        self._last_error = self._identity_error = ""
        self._closer: asyncio.Task[object] | None = None
        self._closing = False
        try:
            with heeding_cancellation():
                await self._connect(options)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            await self._abandon()
            if refusal := refusal_of(self._identity_error, self._address, credentials):
                raise refusal from error
            raise BusUnavailableError(
                f"no bus at {self.url} ({self._last_error or 'no answer'}). "
                "Is the NATS server running, and is the address right?"
            ) from error
        except BaseException:
            await self._abandon()
            raise
        self._up.set()

    async def _connect(self, options: dict[str, Any]) -> None:
        # With unlimited reconnects nats-py never gives up the first attempt: the limit is ours.
        async with asyncio.timeout(self._connect_timeout_s):
            await self._client.connect(
                servers=[*self._address.servers],
                name=self._name,
                # nats-py accepts real coroutine functions only, and without an error_cb logs
                # a traceback for each failed attempt.
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=_RECONNECT_WAIT_S,  # type: ignore[arg-type]  # seconds
                connect_timeout=1,
                # With the default pings a black-holed server goes unnoticed for minutes.
                ping_interval=1,
                max_outstanding_pings=2,
                **options,
            )

    async def close(self) -> None:
        """Send what is still buffered if that is possible at once, then let go."""
        if self._closing:
            return
        self._closing = True
        if self._up.is_set():
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S / 2):
                    await self._settle()
        for scope in self._calls:
            if not scope.expired():
                scope.reschedule(0)  # whatever still waits for an answer stops waiting
        await self._abandon()

    async def _abandon(self) -> None:
        self._closing = True
        self._closer = asyncio.current_task()
        # Never drain(): it stalls for its whole time limit after a cancelled fetch.
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S / 2):
                await self._client.close()

    @contextlib.asynccontextmanager
    async def calling(self, what: str, *, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Run an operation under our time limit and with our errors.

        Args:
            what: The operation, for the error message ("publish tm.v1.demo.job.formed").
            timeout_s: Limit in seconds, the connection's own when omitted.

        Raises:
            BusUnavailableError: No answer in time; whether it happened is unknown.
            PermissionDeniedError: This user may not do it.
            BusError: The server refused for another reason.
        """
        limit = self.timeout_s if timeout_s is None else timeout_s
        self._check_open(what)
        scope = asyncio.timeout(limit)
        try:
            with heeding_cancellation():
                try:
                    async with scope:
                        self._calls.add(scope)
                        if not self._up.is_set():
                            # Nothing is buffered for a server that may never return.
                            await self._up.wait()
                            self._check_open(what)
                        yield
                finally:
                    self._calls.discard(scope)
        except (TimeoutError, nats.errors.TimeoutError) as error:
            raise BusUnavailableError(
                f"cannot {what}: no answer from {self.url} within {limit:g} s "
                f"({self._last_error or 'the server is silent'}); the outcome is unknown. "
                "Repeat with the same id."
            ) from error
        except nats.errors.NoRespondersError as error:
            raise BusUnavailableError(f"cannot {what}: nobody listens there") from error
        except (nats.js.errors.NoStreamResponseError, nats.js.errors.ServiceUnavailableError) as e:
            raise BusUnavailableError(
                f"cannot {what}: JetStream is not ready or the stream is missing. "
                "Was setup() called once?"
            ) from e
        except nats.errors.MaxPayloadError as error:
            raise BusError(
                f"cannot {what}: the message is over the server's limit of "
                f"{self._client.max_payload} bytes. Raise max_payload in the server's settings."
            ) from error
        except (
            nats.errors.ConnectionClosedError,
            nats.errors.ConnectionDrainingError,
            nats.errors.OutboundBufferLimitError,
            OSError,
        ) as error:
            raise BusUnavailableError(f"cannot {what}: {error}") from error
        except nats.js.errors.APIError as error:
            cure = _CURES.get(error.err_code or 0, "").format(reserved=_reserved())
            raise BusError(f"cannot {what}: {error.description or error}{cure}") from error
        except nats.errors.Error as error:
            raise BusError(f"cannot {what}: {error}") from error

    def _check_open(self, what: str) -> None:
        if self._closing:
            raise BusUnavailableError(f"cannot {what}: this bus is not open")
        if self._client.is_closed:
            raise BusUnavailableError(
                f"cannot {what}: the server at {self.url} closed this connection for good "
                f"({self._client.last_error}). Cure the cause and start this process again."
            )

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]]
    ) -> Subscription:
        """Subscribe, and return once the server agreed.

        Raises:
            PermissionDeniedError: This user may not listen there.
            BusUnavailableError: No answer in time.
        """
        async with self.calling(f"subscribe to {subject}"):
            self._refused_subscriptions.discard(subject.lower())
            subscription = await self._client.subscribe(subject, cb=callback)
            try:
                await self._settle()  # a refusal is told before the answer to our ping
            except BaseException:
                await self.unsubscribe(subscription)
                raise
        if subject.lower() in self._refused_subscriptions:
            await self.unsubscribe(subscription)
            raise forbidden("subscribe to", subject)
        return subscription

    async def subscribe_patiently(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]]
    ) -> Subscription:
        """Like ``subscribe``, but waits through an outage as long as it takes."""
        while True:
            try:
                return await self.subscribe(subject, callback)
            except BusUnavailableError:
                if self.closing:
                    raise

    async def _settle(self) -> None:
        """Return once the server has seen everything we sent."""
        # nats-py's ping overtakes what its flusher has not written yet, which the first round
        # trip gets written: only the second ping is behind it.
        await self._client.flush()
        await self._client.flush()

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; never raises, never waits for a dead server."""
        with heeding_cancellation(), contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S / 2):
                await subscription.unsubscribe()

    async def send(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Publish without an answer; dropped while the server is unreachable."""
        if self.connected:
            with heeding_cancellation(), contextlib.suppress(nats.errors.Error, OSError):
                await self._client.publish(subject, data, headers=headers)

    def _is_lost(self, task: asyncio.Task[object] | None) -> bool:
        """Whether ``task`` goes on although it was cancelled, or nobody waits for it any more."""
        if self._closer is not None:
            return task is not self._closer
        return task is not None and task.cancelling() > 0

    async def _on_error(self, error: Exception) -> None:
        if self._is_lost(asyncio.current_task()):
            # Python 3.11's wait_for can swallow the cancellation of what nats-py awaits, which then
            # dials for ever. It asks us in each round.
            raise asyncio.CancelledError
        text = str(error) or type(error).__name__
        if match := _VIOLATION.search(text):
            # A forbidden publish would otherwise surface as a bare time-out.
            # nats-py hands the server's text on in lower case: subjects are compared that way.
            verb, subject = match[1].lower(), match[2].lower()
            if verb == "subscription":
                self._refused_subscriptions.add(subject)
            elif not self._client.refuse(subject) and subject not in self._warned:
                self._warned.add(subject)
                _log.warning("bus.forbidden", subject=subject, bus=self.url)
            return
        self._last_error = text
        if _IDENTITY.search(text):
            self._identity_error = text  # the attempts that follow fail for duller reasons
        if isinstance(error, nats.errors.SlowConsumerError):
            _log.warning("bus.slow_consumer", subject=error.subject)
        else:
            _log.debug("bus.error", error=text, bus=self.url)

    async def _on_disconnected(self) -> None:
        if self._closing or not self._up.is_set():
            return
        self._up.clear()
        _log.warning("bus.lost", bus=self.url, reason=self._last_error or "connection ended")
        for callback in self._on_lost:
            await callback()

    async def _on_reconnected(self) -> None:
        self._up.set()
        self._last_error = ""
        _log.info("bus.back", bus=self.url)
        for wake in tuple(self._on_up):
            wake()
        for callback in self._on_back:
            await callback()

    async def _on_closed(self) -> None:
        if not self._closing:
            _log.error("bus.closed_by_server", bus=self.url, reason=str(self._client.last_error))
            self._up.set()  # who waits for the server, and every reader, learns of it
            for wake in tuple(self._on_up):
                wake()


def _reserved() -> str:
    return f"{sum(each.max_bytes or 0 for each in stream_configs()) / 1024**3:.1f} GiB"


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Drop what asyncio says at the end of each connection that nats-py upgraded to TLS."""
    return "returning true from eof_received()" not in record.getMessage()
