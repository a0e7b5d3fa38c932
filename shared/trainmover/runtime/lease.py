"""Who leads, when several replicas of a service run: a lease in the key-value store.

A replica takes the lease when nobody holds it, or when its entry did not change for ``ttl_s`` of
the replica's own clock: no two clocks are ever compared. The holder renews it several times in that
span, and believes in it for less than the span, counted from before the renewal was sent. So it
stops before anybody else starts, except when it is frozen between looking and acting. That gap is
closed by the *term*, which grows with each holder: machines refuse the commands of earlier terms.

An entry that cannot be read names nobody: the holder writes over it, and if there is none, whoever
waits does after ``ttl_s``, however often somebody puts another one there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from pydantic import ValidationError

from trainmover.bus.protocol import Bus, Entry
from trainmover.bus.streams import JOBS_BUCKET
from trainmover.errors import BusUnavailableError, ConflictError, LeaseLostError
from trainmover.job.topology import Frozen
from trainmover.runtime import procfs
from trainmover.tracing import observe

__all__ = ["Lease"]

_log = observe.get_logger(__name__)
_POLL_S: Final = 0.5
_CAUTION: Final = 0.7
"""The share of its span for which a holder believes in its lease."""


class _Holder(Frozen):
    """What the entry says; an empty ``id`` is a lease that was given back.

    Attributes:
        pids: Of which numbering of processes ``pid`` is one; a host name says too little, because
            containers on two hosts, or on one, may have the same.
        start_ticks: When the process began, which a later one with its number did not.
    """

    id: str
    pids: str = ""
    pid: int = 0
    start_ticks: int = 0

    @classmethod
    def here(cls) -> Self:
        """This process."""
        stat = procfs.read_stat(os.getpid())
        return cls(
            id=secrets.token_hex(8),
            pids=_pids(),
            pid=os.getpid(),
            start_ticks=0 if stat is None else stat.start_ticks,
        )

    @property
    def is_dead(self) -> bool:
        """Whether it is a process that could be seen from here and is not there."""
        return bool(self.pids) and self.pids == _pids() and _ended(self.pid, self.start_ticks)


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
        self._me = _Holder.here()
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
                if known is not None and (seen is None or self._is_new(known, seen)):
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
            holder = None if known is None else _read(known)
            if known is None or holder is None:
                await self._write_over(known, began_s)
                return
            if holder.id != self._me.id:
                self._renewed_s = -float("inf")
                raise LeaseLostError(
                    f"another {self._service} leads this job now: this one was away for too long. "
                    "It ends; let your supervisor start it again as a replica."
                ) from None
            entry = known  # our own renewal had arrived although we were told nothing
        self._ours(entry, began_s)

    async def _write_over(self, known: Entry | None, began_s: float) -> None:
        """Put our entry where one was that names nobody, unless somebody is faster."""
        revision = None if known is None else known.revision
        _log.warning("lease.unreadable", service=self._service, key=self._key, revision=revision)
        mine = self._me.model_dump_json().encode()
        with contextlib.suppress(ConflictError):  # the next renewal finds out by whom
            entry = await self._bus.put(JOBS_BUCKET, self._key, mine, revision=revision)
            self._ours(entry, began_s)

    def _ours(self, entry: Entry, began_s: float) -> None:
        self._revision = entry.revision
        self._renewed_s = began_s
        if self.held:
            self._renewed.set()

    def _is_free(self, known: Entry) -> bool:
        """Given back, ours by a write of unknown outcome, or of a dead process of this host."""
        holder = _read(known)
        return holder is not None and (holder.id in ("", self._me.id) or holder.is_dead)

    @staticmethod
    def _is_new(known: Entry, seen: Entry) -> bool:
        """Whether a holder was at work: nobody keeps others out by writing what names nobody."""
        return known.revision != seen.revision and _read(known) is not None


def _read(entry: Entry) -> _Holder | None:
    """Who holds the lease by an entry; None when it names nobody."""
    try:
        return _Holder.model_validate_json(entry.value)
    except ValidationError:
        return None


def _pids() -> str:
    """Which processes can be seen from here: a boot of a kernel, and a namespace of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _ended(pid: int, start_ticks: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False  # another user's, which /proc may hide from us
    stat = procfs.read_stat(pid)
    return stat is not None and stat.start_ticks != start_ticks
