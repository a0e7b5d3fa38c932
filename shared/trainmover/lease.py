"""Who leads, when several replicas of a service run: a lease in the key-value store.

A replica takes the lease when nobody holds it, or when its entry did not change for ``ttl_s`` of
the replica's own clock: no two clocks are ever compared. The holder renews it several times in that
span, and believes in it for less than the span, counted from before the renewal was sent. So it
stops before anybody else starts, except when it is frozen between looking and acting. That gap is
closed by the *term*, which grows with each holder: machines refuse the commands of earlier terms.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from trainmover import observe
from trainmover.bus.protocol import Bus, Entry
from trainmover.bus.streams import JOBS_BUCKET
from trainmover.errors import BusUnavailableError, ConflictError, LeaseLostError
from trainmover.topology import Frozen

__all__ = ["Lease"]

_log = observe.get_logger(__name__)
_POLL_S: Final = 0.5
_CAUTION: Final = 0.7
"""The share of its span for which a holder believes in its lease."""


class _Holder(Frozen):
    """What the entry says; an empty ``id`` is a lease that was given back."""

    id: str
    host: str = ""
    pid: int = 0


class Lease:
    """The lease of one service of one job.

    Args:
        bus: A connected bus.
        job: Job name.
        service: Name of the service.
        ttl_s: Seconds without renewal after which another replica takes it.
        clock: Seconds, steady; must go on while the process is stopped.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        job: str,
        service: str,
        ttl_s: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._key = f"{job}.{service}-lease"
        self._service = service
        self._ttl_s = ttl_s
        self._clock = clock
        self._me = _Holder(id=secrets.token_hex(8), host=socket.gethostname(), pid=os.getpid())
        self._revision: int | None = None
        self._renewed_s = -float("inf")
        self._renewed = asyncio.Event()
        self.term = 0

    @property
    def held(self) -> bool:
        """Whether it is certainly ours at this moment."""
        return self._clock() - self._renewed_s < self._ttl_s * _CAUTION

    async def acquire(self) -> int:
        """Wait until it is ours; the term of this holder, higher than all before."""
        seen: Entry | None = None
        seen_s = self._clock()
        waiting = False
        while True:
            began_s = self._clock()
            try:
                known = await self._bus.get(JOBS_BUCKET, self._key)
                if known is not None and (seen is None or known.revision != seen.revision):
                    seen, seen_s = known, began_s
                if known is None or self._is_free(known) or began_s - seen_s >= self._ttl_s:
                    await self._take(known, began_s)
                    return self.term
            except ConflictError:
                continue  # another replica was first: look who it is
            except BusUnavailableError as error:
                _log.warning("lease.bus_unavailable", service=self._service, reason=str(error))
            if not waiting:
                waiting = True
                _log.info("lease.waiting", service=self._service, reason="another replica leads")
            await asyncio.sleep(min(self._ttl_s / 6, _POLL_S))

    async def keep(self) -> None:
        """Renew it until cancelled.

        Raises:
            LeaseLostError: Another replica leads now.
        """
        while True:
            await asyncio.sleep(self._ttl_s / 6)
            began_s = self._clock()
            try:
                await self._renew(began_s)
            except BusUnavailableError as error:
                _log.warning("lease.not_renewed", service=self._service, reason=str(error))

    async def confirmed(self) -> None:
        """Return at once while it is certainly ours, else when it has been renewed."""
        while not self.held:
            self._renewed.clear()
            await self._renewed.wait()

    async def give_back(self) -> None:
        """Let the next replica start at once; tried once."""
        free = _Holder(id="").model_dump_json().encode()
        self._renewed_s = -float("inf")
        try:
            await self._bus.put(JOBS_BUCKET, self._key, free, revision=self._revision)
        except (BusUnavailableError, ConflictError) as error:
            _log.debug("lease.not_given_back", service=self._service, reason=str(error))

    async def _take(self, known: Entry | None, began_s: float) -> None:
        mine = self._me.model_dump_json().encode()
        revision = None if known is None else known.revision
        entry = await self._bus.put(JOBS_BUCKET, self._key, mine, revision=revision)
        self._ours(entry, began_s)
        self.term = entry.revision
        _log.info("lease.taken", service=self._service, term=self.term)

    async def _renew(self, began_s: float) -> None:
        mine = self._me.model_dump_json().encode()
        try:
            entry = await self._bus.put(JOBS_BUCKET, self._key, mine, revision=self._revision)
        except ConflictError:
            known = await self._bus.get(JOBS_BUCKET, self._key)
            if known is None or _read(known).id != self._me.id:
                self._renewed_s = -float("inf")
                raise LeaseLostError(
                    f"another {self._service} leads this job now: this one was away for too long. "
                    "It ends; let your supervisor start it again as a replica."
                ) from None
            entry = known  # our own renewal had arrived although we were told nothing
        self._ours(entry, began_s)

    def _ours(self, entry: Entry, began_s: float) -> None:
        self._revision = entry.revision
        self._renewed_s = began_s
        if self.held:
            self._renewed.set()

    def _is_free(self, known: Entry) -> bool:
        """Given back, ours by a write of unknown outcome, or of a dead process of this host."""
        holder = _read(known)
        if holder.id in ("", self._me.id):
            return True
        return holder.host == self._me.host and holder.pid > 0 and not _runs(holder.pid)


def _read(entry: Entry) -> _Holder:
    try:
        return _Holder.model_validate_json(entry.value)
    except ValidationError:
        return _Holder(id="unreadable")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
