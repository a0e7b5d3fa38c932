"""The relay's shell: facts from the bus, requests to the receiver, a position that survives us."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import httpx

from trainmover.bus.protocol import Bus, Delivery
from trainmover.errors import BusUnavailableError
from trainmover.events.catalog import type_of
from trainmover.events.envelope import Envelope
from trainmover.tracing import observe
from trainmover_gateway.relay.policy import Answer, Deliver, GiveUp, Retry, decide
from trainmover_gateway.relay.selection import Selection
from trainmover_gateway.relay.webhook import Secret, request_for

__all__ = ["Relay"]

_log = observe.get_logger(__name__)
_ANSWER_S: Final = 10.0
_REASON: Final = 200
"""Characters of what a receiver says."""

_BUS_RETRY_S: Final = 0.5
_KEEP_S: Final = 3.0
"""Well below the bus's ten seconds after which a fact is delivered again."""


class Relay:
    """Posts the facts of one job to one receiver, in order, each at least once.

    A fact is acknowledged only after the receiver took it, so that neither an outage of the
    receiver nor a restart of the relay loses any.

    Args:
        bus: A connected bus.
        job: Job name.
        to: URL of the receiver.
        selection: Which facts.
        secret: Signs the requests.
        position: Name of the place in the stream; one for each receiver.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        job: str,
        to: str,
        selection: Selection,
        secret: Secret | None = None,
        position: str = "relay",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._bus = bus
        self._job = job
        self._to = to
        self._selection = selection
        self._secret = secret
        self._position = position
        self._sleep = sleep

    async def run(self) -> None:
        """Relay until cancelled."""
        async with httpx.AsyncClient(timeout=_ANSWER_S, follow_redirects=False) as client:
            while True:
                facts = self._bus.events(
                    self._job,
                    entity=self._selection.entity,
                    fact=self._selection.fact,
                    durable=self._position,
                    one_by_one=True,
                )
                try:
                    async for delivery in facts:
                        await self._pass_on(client, delivery)
                except BusUnavailableError as error:
                    _log.warning("relay.bus_unavailable", reason=str(error))
                await asyncio.sleep(_BUS_RETRY_S)

    async def _pass_on(self, client: httpx.AsyncClient, delivery: Delivery[Envelope]) -> None:
        event = delivery.payload
        if type_of(event.payload).name not in self._selection.names:
            await delivery.ack()
            return
        try:
            async with asyncio.TaskGroup() as group:
                keeper = group.create_task(_keep(delivery))
                refused = await self._offer(client, event)
                keeper.cancel()
        except asyncio.CancelledError:
            with contextlib.suppress(BusUnavailableError):
                await delivery.nak()  # who comes after us gets it at once
            raise
        if refused is None:
            await delivery.ack()
        else:
            _log.error("relay.gave_up", type=event.type, id=event.id, reason=refused.reason)
            await delivery.reject(f"{self._to}: {refused.reason}")

    async def _offer(self, client: httpx.AsyncClient, event: Envelope) -> GiveUp | None:
        """Post ``event`` until it is taken, or will never be."""
        attempt = 0
        while True:
            attempt += 1
            with observe.span("relay.post", parent=event.trace, http_request_method="POST"):
                answer = await self._post(client, event)
            decision = decide(
                answer,
                attempt=attempt,
                chance=random.random(),  # noqa: S311 - spreads retries, protects nothing
                now=datetime.now(UTC),
            )
            match decision:
                case Deliver():
                    _log.info("relay.delivered", type=event.type, id=event.id, attempt=attempt)
                    return None
                case GiveUp():
                    return decision
                case Retry(delay_s=delay_s):
                    _log.warning(
                        "relay.retries",
                        type=event.type,
                        attempt=attempt,
                        reason=answer.reason,
                        in_s=round(delay_s, 2),
                    )
                    await self._sleep(delay_s)

    async def _post(self, client: httpx.AsyncClient, event: Envelope) -> Answer:
        request = request_for(event, secret=self._secret, now=datetime.now(UTC))
        headers = {**request.headers, **observe.current_trace()}
        try:
            # What the receiver has to say beside its status is not read: it may be endless.
            async with (
                asyncio.timeout(_ANSWER_S),
                client.stream("POST", self._to, content=request.body, headers=headers) as response,
            ):
                reason = f"{response.status_code} {response.reason_phrase}".strip()
                answered = {name.lower(): value for name, value in response.headers.items()}
                return Answer(response.status_code, reason[:_REASON], answered)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
            return Answer(0, f"{type(error).__name__}: {error}"[:_REASON], {})


async def _keep(delivery: Delivery[Envelope]) -> None:
    """Hold on to a fact while the receiver makes us wait."""
    while True:
        await asyncio.sleep(_KEEP_S)
        await delivery.extend()
