"""The shell of a machine of a pool: says where it is, hears orders, runs one agent at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections import deque
from typing import Final

from trainmover.bus.credentials import Credentials
from trainmover.bus.protocol import Bus
from trainmover.errors import BusError, BusUnavailableError, PermissionDeniedError, TrainMoverError
from trainmover.policy import Problem
from trainmover.policy.sharing import JobShare, read_sharing
from trainmover.runtime.declared import look_at, text_of
from trainmover.runtime.parents import die_with_parent
from trainmover.runtime.service import URL_VARIABLE
from trainmover.tracing.observe import get_logger, new_event
from trainmover_executor.pooled import core
from trainmover_executor.pooled.options import PooledOptions

__all__ = ["PooledMachine"]

_log = get_logger(__name__)
_SAY_S: Final = 2.0
_RETRY_S: Final = 1.0
_END_S: Final = 10.0
"""An agent ends its processes within less, or is ended."""


class PooledMachine:
    """One machine of a pool.

    Args:
        bus: A connected bus.
        options: What the machine was told.
        credentials: Who it is to the bus; its agents are the same.
    """

    def __init__(
        self, bus: Bus, options: PooledOptions, *, credentials: Credentials | None = None
    ) -> None:
        self._bus = bus
        self._options = options
        self._credentials = credentials or Credentials()
        self._state = core.PooledState(
            machine=options.machine,
            run=secrets.token_hex(8),
            labels=dict(options.labels),
            since_s=time.monotonic(),
        )
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._events: deque[core.Event] = deque()
        self._feeding = False
        self._wanted: asyncio.Queue[str] = asyncio.Queue()
        self._agent: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        """Wait and serve until cancelled.

        Returns:
            The exit code: 143, as for an agent that is asked to end.

        Raises:
            PermissionDeniedError: The bus does not let this machine take part in the pool.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (self._say(), self._obey(), self._serve())]
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or any(one.done() for one in tasks):
                    raise  # one of them failed
                # Our own end is orderly: the agent first, then a last word.
                task.uncancel()
                self._feed(core.Terminate())
                await self._end_agent()
                with contextlib.suppress(BusError, TimeoutError):
                    async with asyncio.timeout(_RETRY_S):
                        await self._say_once()
                for each in tasks:
                    each.cancel()
        return 128 + signal.SIGTERM

    # -- what happens --------------------------------------------------------------------------

    def _feed(self, event: core.Event) -> None:
        """Take an event through the core and carry out what it decides; what follows waits."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                happened = self._events.popleft()
                self._state, actions = core.step(self._state, happened, time.monotonic())
                for action in actions:
                    self._carry_out(action)
        finally:
            self._feeding = False
        self._news.set()

    def _carry_out(self, action: core.Action) -> None:
        match action:
            case core.StartAgent(job=job):
                self._wanted.put_nowait(job)
            case core.StopAgent():
                if self._agent is not None:
                    with contextlib.suppress(ProcessLookupError):
                        self._agent.terminate()
            case core.Exit():
                self._over.set()
            case core.Log(event=event, fields=fields):
                _log.info(event, machine=self._options.machine, **fields)

    async def _end_agent(self) -> None:
        try:
            async with asyncio.timeout(_END_S):
                await self._over.wait()
        except TimeoutError:
            if self._agent is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._agent.kill()

    async def _obey(self) -> None:
        options = self._options
        while True:
            try:
                async for delivery in self._bus.commands(options.pool, options.machine):
                    self._feed(core.Ordered(delivery.payload))
                    # What comes again changes nothing.
                    with contextlib.suppress(BusUnavailableError):
                        await delivery.ack()
            except PermissionDeniedError as error:
                if self._state.job is None:
                    raise
                _log.error("bus.reading_refused", error=str(error))
            except BusError as error:
                _log.debug("bus.reading_interrupted", error=str(error))
            await asyncio.sleep(_RETRY_S)

    async def _say(self) -> None:
        while True:
            self._news.clear()
            try:
                await self._say_once()
            except BusUnavailableError as error:
                _log.debug("pool.not_said", error=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SAY_S):
                    await self._news.wait()

    async def _say_once(self) -> None:
        self._state, fact = core.word(self._state, time.monotonic())
        options = self._options
        event = new_event(
            job=options.pool,
            source=f"/machine/{options.machine}",
            payload=fact,
            id=f"{options.pool}:{options.machine}:{fact.run}:{fact.offer}",
        )
        await self._bus.publish(event)

    # -- the agent -----------------------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            job = await self._wanted.get()
            try:
                code = await self._run_agent(job)
            except (TrainMoverError, OSError) as error:
                self._feed(core.Ended(None, str(error)[:300]))
            else:
                self._feed(core.Ended(code))

    async def _run_agent(self, job: str) -> int:
        share = await asyncio.to_thread(self._share_of, job)
        parent = os.getpid()
        self._agent = await asyncio.create_subprocess_exec(
            *self._command(job, share),
            cwd=share.folder or None,
            env={
                **os.environ,
                URL_VARIABLE: self._options.nats,  # not on a command line: it may have a password
                **self._credentials.environment(),
                **share.env,
            },
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours: we end it in order
            # A machine whose process is killed is gone as a whole.
            preexec_fn=lambda: die_with_parent(parent, signal.SIGKILL),
        )
        try:
            if self._state.phase == "leaving":  # asked to end while it was started
                self._agent.terminate()
            return await self._agent.wait()
        finally:
            if self._agent.returncode is None:
                self._agent.kill()
            self._agent = None

    def _share_of(self, job: str) -> JobShare:
        """What this machine's own file says about a job.

        Raises:
            PolicyError: The file is wrong, or cannot be read.
        """
        path = self._options.jobs
        share = read_sharing(text_of(path, look_at(path)), name=str(path)).jobs.get(job)
        if share is None:
            raise TrainMoverError(
                str(Problem(str(path), f"there is no job {job!r} in it. Add it."))
            )
        return share

    def _command(self, job: str, share: JobShare) -> list[str]:
        options = self._options
        command = [sys.executable, "-m", "trainmover_executor.agent", "--job", job]
        command += ["--machine", options.machine, "--host", options.host]
        command += ["--lent-by", options.pool]
        for key, value in options.labels.items():
            command += ["--label", f"{key}={value}"]
        if options.warm_limit is not None:  # first: what the job's own options say counts
            command += ["--warm-limit", str(options.warm_limit)]
        if options.log_dir is not None:
            command += ["--log-dir", str(options.log_dir / job)]
        return [*command, *share.agent]
